"""The record of full sizes: what ran is renewed, what did not keeps its line."""

import subprocess
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import pytest

_TESTS = """
import pytest
@pytest.mark.parametrize("n", [1, 2, 3])
def test_cases(n): assert n < 3
def test_good(): pass
def test_skipped(): pytest.skip("no room")
@pytest.fixture
def broken(): raise ValueError
def test_with_a_broken_fixture(broken): pass
"""


@pytest.fixture(scope="module")
def check() -> ModuleType:
    path = Path(__file__).parents[1] / "check"
    spec = spec_from_loader("check", SourceFileLoader("check", str(path)))
    assert spec and spec.loader
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_report_of_pytest_says_how_each_test_ended(check: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_some.py").write_text(_TESTS)
    command = ["pytest", "--junitxml=report.xml", "-o", "junit_family=xunit1"]
    subprocess.run([sys.executable, "-m", *command], cwd=tmp_path, capture_output=True)
    found = check.outcomes((tmp_path / "report.xml").read_text())
    assert found == {
        "tests/test_some.py::test_cases": "1 failed, 2 passed in 0 s",
        "tests/test_some.py::test_good": "1 passed in 0 s",
        "tests/test_some.py::test_skipped": "1 skipped in 0 s",
        "tests/test_some.py::test_with_a_broken_fixture": "1 failed in 0 s",
    }


def test_what_did_not_run_keeps_its_line_and_what_is_gone_leaves(check: ModuleType) -> None:
    first = check.renewed([], ["a::x", "a::y"], {"a::x": "1 passed in 2 s"}, "day 1")
    assert [line.split()[-1] for line in first] == ["a::x", "a::y"]
    assert first[0].startswith("day 1  1 passed in 2 s") and first[1].startswith("not on record")
    second = check.renewed(first, ["a::x", "b::z"], {"b::z": "1 failed in 3 s"}, "day 2")
    assert second[0] == first[0] and second[1].startswith("day 2  1 failed in 3 s")
    assert len(second) == 2

"""The one command: what a diff touches, what is fast, and a record that goes on where it was."""

import json
import re
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
_TESTS = """
import pytest
pytestmark = pytest.mark.full
@pytest.mark.parametrize("n", [1, 2, 3])
def test_cases(n, tmp_path): assert n < 3, f"three is too many in {__file__}, {tmp_path}"
def test_good():
    with open("src/one.py") as file: assert "x" in file.read()
def test_skipped(): pytest.skip("no room")
@pytest.fixture
def broken(): raise ValueError("no such thing")
def test_with_a_broken_fixture(broken): pass
"""

_WORKERS = """
import os, pathlib, pytest
@pytest.mark.parametrize("n", [f"{n}@{m}" for n in "abc" for m in "abc"])
def test_who(n):
    with pathlib.Path(__file__).with_suffix(".txt").open("a") as file:
        print(os.environ["PYTEST_XDIST_WORKER"], file=file)
"""


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """`check` in a small repository of its own, with this one's conftest."""
    spec = spec_from_loader("check", SourceFileLoader("check", str(ROOT / "check")))
    assert spec and spec.loader
    module = module_from_spec(spec)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)  # its runs are nobody's workers
    spec.loader.exec_module(module)
    for name in ("docs", "src", "tests", "build"):
        (tmp_path / name).mkdir()
    (tmp_path / ".gitignore").write_text("__pycache__\n")
    for name in ("one", "two"):
        (tmp_path / "src" / f"{name}.py").write_text("x = 1\n")
    (tmp_path / "tests" / "test_some.py").write_text(_TESTS)
    (tmp_path / "tests" / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    (tmp_path / "pyproject.toml").write_text(
        "[tool.pytest.ini_options]\nmarkers = ['full: x', 'alone: x']\n"
        "addopts = '-p no:schemathesis'\n"  # as here: half of the time that a run takes to start
    )
    for name in ("ROOT", "RECORD", "TIMES", "JOURNAL", "GUIDE"):
        path: Path = getattr(module, name)
        monkeypatch.setattr(module, name, tmp_path / path.relative_to(ROOT))
    _git(tmp_path, "init", "--quiet")
    _commit(tmp_path)
    return module


def _git(folder: Path, *words: str) -> None:
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True)


def _commit(folder: Path) -> None:
    _git(folder, "add", "src", "tests")
    _git(folder, "commit", "--quiet", "-m", "some")


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch, check: ModuleType) -> None:
    """The machine was measured before: this is not about it."""
    found = {"date": "2026-11-16", "gflops": 150}
    monkeypatch.setattr(check, "where", lambda: dict(found))


@pytest.mark.usefixtures("quiet")
def test_a_full_run_records_how_each_test_ended(check: ModuleType) -> None:
    assert not check.run_full([], again=False)
    tests = json.loads(check.RECORD.read_text())["tests"]
    ended = {name.partition("::")[2]: entry["outcome"] for name, entry in tests.items()}
    assert ended == {
        "test_cases": "failed",
        "test_good": "passed",
        "test_skipped": "skipped",
        "test_with_a_broken_fixture": "failed",
    }
    cases = tests["tests/test_some.py::test_cases"]
    assert cases["cases"] == 3 and cases["gflops"] == 150 and cases["source"]
    assert "three is too many in tests/test_some.py, test_cases_3_0" in cases["why"]


@pytest.mark.usefixtures("quiet")
def test_a_second_run_does_only_what_is_not_on_record(
    check: ModuleType, capfd: pytest.CaptureFixture[str]
) -> None:
    check.run_full(["tests/test_some.py::test_good"], again=False)
    first = json.loads(check.RECORD.read_text())["tests"]
    assert first["tests/test_some.py::test_skipped"] == {"outcome": "not run"}
    assert check.run_full(["tests/test_some.py::test_good"], again=False)
    assert "1 chosen, 1 of them on record" in capfd.readouterr().out
    assert json.loads(check.RECORD.read_text())["tests"] == first

    path = check.ROOT / "src" / "one.py"
    path.write_text("x = 2\n")
    assert not check.run_full([], again=False), "what is in no commit has no name"
    _commit(check.ROOT)
    assert check.run_full(["tests/test_some.py::test_good"], again=False)
    assert "1 chosen, 0 of them on record" in capfd.readouterr().out
    second = json.loads(check.RECORD.read_text())["tests"]
    good = "tests/test_some.py::test_good"
    assert second[good]["source"] != first[good]["source"], "another source is another record"


_READER = """
import pathlib, pytest, subprocess, sys
pytestmark = pytest.mark.full
CODE = "import sys; sys.path.append('src'); import two"
def test_by_another(): subprocess.run([sys.executable, "-c", CODE], check=True)
def test_by_a_tool(): subprocess.run(["cat", "src/two.py"], check=True)
def test_names(): assert [*pathlib.Path("src/data").iterdir()]
"""


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("name", ("test_by_another", "test_by_a_tool", "test_names"))
def test_a_test_runs_again_when_what_it_read_has_changed(check: ModuleType, name: str) -> None:
    """Itself, or by a process that it starts; what it did not read may change."""
    test = f"tests/test_reader.py::{name}"
    data = check.ROOT / "src" / "data"
    data.mkdir()
    (data / "one.toml").write_text("a = 1\n")
    (check.ROOT / "tests" / "test_reader.py").write_text(_READER)
    _commit(check.ROOT)
    assert check.run_full([test], again=False)

    def stands() -> bool:
        record = json.loads(check.RECORD.read_text())
        return check.is_on_record(record, test, check.committed())

    assert stands()
    (check.ROOT / "src" / "one.py").write_text("x = 3\n")
    _commit(check.ROOT)
    assert stands(), "it did not read this file"
    if name == "test_names":
        (data / "two.toml").write_text("a = 1\n")
    else:
        (check.ROOT / "src" / "two.py").write_text("x = 3\n")
    _commit(check.ROOT)
    assert not stands()


def test_the_journal_has_a_line_for_each_phase_of_each_test_on_any_number_of_workers(
    check: ModuleType,
) -> None:
    for workers in ("0", "2"):
        check.JOURNAL.unlink(missing_ok=True)
        check.run("tests", [*check.PYTEST, "-n", workers])
        found = {name: entry["cases"] for name, entry in check.outcomes(check.journal()).items()}
        file = "tests/test_some.py"
        assert found == {
            f"{file}::test_cases": 3,
            f"{file}::test_good": 1,
            f"{file}::test_skipped": 1,
            f"{file}::test_with_a_broken_fixture": 1,
        }


def test_a_file_is_run_by_one_worker(check: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or each worker makes again what the tests of a file share."""
    files = [check.ROOT / "tests" / f"test_{name}.py" for name in ("one", "two", "three")]
    for file in files:
        file.write_text(_WORKERS)
    monkeypatch.setattr(check, "CORES", 2)
    assert check.run_tests([])
    told = [file.with_suffix(".txt").read_text().split() for file in files]
    assert [len(workers) for workers in told] == [9, 9, 9]
    assert [len(set(workers)) for workers in told] == [1, 1, 1]
    names = {line["test"].partition("::")[2] for line in check.journal() if "one" in line["test"]}
    assert names == {f"test_who[{n}@{m}]" for n in "abc" for m in "abc"}


def test_what_runs_beside_the_others_is_waited_for_and_shown(
    check: ModuleType, capfd: pytest.CaptureFixture[str]
) -> None:
    wait = "while not os.path.exists('go'): time.sleep(0.01)"
    code = f"import os, sys, time\n{wait}\nprint('a wrong type')\nsys.exit(1)"
    with check.beside("types", [sys.executable, "-c", code]) as are_typed:
        (check.ROOT / "go").touch()  # else it would wait for ever
        assert not are_typed()
    assert capfd.readouterr().out == "== types, beside the others\na wrong type\n"


def test_a_diff_touches_the_tests_that_name_its_modules_and_helpers(check: ModuleType) -> None:
    tests = check.ROOT / "tests"
    (tests / "test_near.py").write_text(
        "from rooflight.plan.training.search.space import patterns\n"
    )
    (tests / "test_far.py").write_text("from rooflight.plan.spaces import others\n")
    (tests / "test_worker.py").write_text("WORKER = 'some_worker.py'\n")
    names = [f"tests/test_{name}.py" for name in ("near", "far", "worker")]

    def touched(*changed: str) -> set[str]:
        return check.touched(changed, names)

    assert touched("src/rooflight/plan/training/search/space.py") == {"tests/test_near.py"}
    assert touched("tests/some_worker.py") == {"tests/test_worker.py"}
    assert touched("tests/test_far.py") == {"tests/test_far.py"}
    assert touched("docs/plan.md") == set()


def test_the_fastest_run_while_they_fit(check: ModuleType) -> None:
    seconds = {"a": 1.0, "b": 2.0, "c": 4.0}
    assert check.while_they_fit("abc", seconds, 3.5) == ["a", "b"]
    assert check.while_they_fit("abc", seconds, 7.0) == ["a", "b", "c"]


def test_times_are_of_files_with_all_phases(check: ModuleType) -> None:
    lines = [
        {"test": "tests/a.py::test_x[1]", "seconds": 0.4},
        {"test": "tests/a.py::test_y", "seconds": 0.3},
        {"test": "tests/b.py::test_z", "seconds": 0.1},
    ]
    assert check.file_times(lines) == {"tests/a.py": 0.7}


def test_the_guide_shows_the_times_on_record() -> None:
    spec = spec_from_loader("check", SourceFileLoader("check", str(ROOT / "check")))
    assert spec and spec.loader
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    page = module.GUIDE.read_text()
    assert module.with_runs(page, json.loads(module.TIMES.read_text())["runs"]) == page


def test_the_record_lists_the_full_sizes_that_there_are() -> None:
    listed = set(json.loads((ROOT / "docs" / "full-sizes.json").read_text())["tests"])
    marked: set[str] = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        for marks, name in re.findall(
            r"((?:^@.*\n(?:[ )].*\n)*)+)def (test_\w+)", path.read_text(), re.MULTILINE
        ):
            if "mark.full" in marks:
                marked.add(f"{path.relative_to(ROOT)}::{name}")
    assert listed >= marked and all((ROOT / t.partition("::")[0]).exists() for t in listed)

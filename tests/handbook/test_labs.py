"""The labs, each in a process of its own: one that ends without an error has shown its point."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from ..dated_figure import today, write_figure
from ..reference_loop import slowness
from .conftest import ROOT

pytest.importorskip("jax")

LABS = {path.stem: path for path in sorted((ROOT / "labs").glob("*.py"))}
SHARED = {"lab", "ring"}  # what labs import
TIMED = pytest.param("arithmetic_intensity", marks=pytest.mark.alone)  # it compares speeds
QUICK = (TIMED, "data_parallel", "fsdp_and_tensor", "moe_dispatch", "reading_a_trace")
LONGEST_S, CORES = 120.0, 2  # that a lab takes, of as many standard cores


def run(name: str) -> str:
    before, begin = slowness(), children_s()
    done = subprocess.run(
        [sys.executable, str(LABS[name])], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert 2 * (children_s() - begin) / (before + slowness()) < CORES * LONGEST_S
    return done.stdout.strip()


def children_s() -> float:
    """CPU seconds of all children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_every_lab_has_a_page_and_every_page_a_lab() -> None:
    pages = {path.stem for path in (ROOT / "docs" / "labs").glob("*.md")} - {"index"}
    assert pages == {name.replace("_", "-") for name in LABS.keys() - SHARED}
    assert len(pages) == 8


@pytest.mark.parametrize("name", QUICK)
def test_a_quick_lab_shows_what_it_teaches(name: str) -> None:
    assert run(name)


@pytest.mark.full
@pytest.mark.parametrize("name", sorted(LABS.keys() - SHARED))
def test_a_lab_shows_what_it_teaches_within_two_minutes(name: str) -> None:
    text, page = run(name), name.replace("_", "-")
    write_figure(f"labs/{page}.md", page, f"{today()}, 2 cores:\n\n```text\n{text}\n```")


def test_a_lab_that_is_wrong_fails(tmp_path: Path) -> None:
    for shared in SHARED:
        (tmp_path / f"{shared}.py").write_text(LABS[shared].read_text())
    text = LABS["fsdp_and_tensor"].read_text()
    wrong = text.replace('lax.psum_scatter(h @ w_out, "X", scatter_dimension=1, tiled=True)', "x")
    assert wrong != text
    (tmp_path / "wrong.py").write_text(wrong)
    done = subprocess.run([sys.executable, str(tmp_path / "wrong.py")], capture_output=True)
    assert done.returncode == 1 and b"AssertionError" in done.stderr

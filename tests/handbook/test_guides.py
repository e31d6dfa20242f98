"""From `pip install` to the answer of each need: the very steps of the guides, where they say."""

import os
import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest

pytest.importorskip("sphinx")

from handbook.guides import guides, steps

from ..dated_figure import today, write_figure
from .conftest import ROOT

WORDS = ("Zero", "One", "Two", "Three", "Four", "Five")
GUIDES = guides(ROOT / "docs" / "guides")
PLANNED = [name for name, page in GUIDES.items() if steps(page)[1][0] == "pip install ."]
COMPILED, TRAINED = "collectives", "state"
_SHOWN = re.compile(r"^\$ (rooflight .*)\n((?:(?!```|\$ ).*\n)*)", re.MULTILINE)
_TIMED = re.compile(r"compiled in \d+ s")


def shown(page: str) -> dict[str, str]:
    """What a page says that its commands print."""
    return {line: output.strip("\n") for line, output in _SHOWN.findall(page)}


def run(line: str, bin: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """One step, as typed in a clone of the repository."""
    for name in ("docs", "tests", "README.md", "ARCHITECTURE.md"):
        if not (folder / name).exists():
            (folder / name).symlink_to(ROOT / name)
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL", "XLA"))}
    path = f"{bin}{os.pathsep}{kept['PATH']}"
    return subprocess.run(
        ["bash", "-c", line], cwd=folder, env=kept | {"PATH": path}, capture_output=True, text=True
    )


def check_compiled(bin: Path, folder: Path) -> None:
    done = run(steps(GUIDES[COMPILED])[1][1], bin, folder)
    assert done.returncode == 1, done.stderr
    text = _TIMED.sub("compiled in 2 s", done.stdout.strip())
    write_figure("guides/collectives.md", "verify steps", f"```text\n{text}\n```")
    source = (ROOT / "docs" / "guides" / "steps.py").read_text(encoding="utf-8").splitlines()
    line = next(i for i, words in enumerate(source, start=1) if "hidden @ w_out" in words)
    assert f"matmuls of this line are done 3 times over [16.7 ms per step, steps.py:{line}]" in text
    page = (ROOT / "docs" / "guides" / "collectives.md").read_text(encoding="utf-8")
    assert text.partition("\n\ncollective")[0] in page


def check_trained(bin: Path, folder: Path) -> None:
    printed = ""
    for line in steps(GUIDES[TRAINED])[1][1:]:
        done = run(line, bin, folder)
        assert done.returncode == 0, f"{line}: {done.stderr}"
        printed = done.stdout
    lines = printed.replace(f"{folder}/", "").splitlines()
    assert "saved from mesh" in lines[0] and "whole by its checksums" in lines[0]
    assert lines[1].startswith("split over v5p:4x4x4:")
    text = "\n".join([*lines[:8], "..."])
    write_figure("guides/state.md", "ckpt show", f"{today()}:\n\n```text\n{text}\n```")


def test_there_is_a_guide_for_each_of_the_eleven_needs() -> None:
    assert len(GUIDES) == 11
    files = {path.stem for path in (ROOT / "docs" / "guides").glob("*.md")}
    assert files == {*GUIDES, "index"}


@pytest.mark.parametrize("name", GUIDES)
def test_a_guide_says_how_many_steps_it_takes_and_it_is_at_most_five(name: str) -> None:
    said, lines = steps(GUIDES[name])
    assert WORDS[len(lines)] == said
    assert lines[0].startswith("pip install ")
    assert all(line.startswith("rooflight ") for line in lines[1:])
    for heading in ("The answer", "How to read it", "Where it stops being true"):
        assert f"\n## {heading}\n" in GUIDES[name]


@pytest.mark.parametrize("name", PLANNED)
def test_the_steps_of_a_guide_print_its_answer_in_a_clean_environment(
    name: str, clean: Path, tmp_path: Path
) -> None:
    page = GUIDES[name]
    for line in steps(page)[1][1:]:
        done = run(line, clean, tmp_path)
        assert done.returncode in (0, 1), done.stderr
        assert done.stdout.strip("\n") == shown(page)[line]


def test_the_steps_of_the_compiler_name_the_line_that_was_forgotten(tmp_path: Path) -> None:
    pytest.importorskip("libtpu")
    check_compiled(Path(sys.executable).parent, tmp_path)


@pytest.mark.full
@pytest.mark.parametrize(("name", "check"), [(COMPILED, check_compiled), (TRAINED, check_trained)])
def test_the_steps_work_after_the_install_that_they_begin_with(
    name: str, check: object, tmp_path: Path
) -> None:
    venv.create(tmp_path / "env", with_pip=True)
    bin = tmp_path / "env" / "bin"
    words = steps(GUIDES[name])[1][0]
    done = subprocess.run(["bash", "-c", f"{bin}/python -m {words}"], cwd=ROOT, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    (tmp_path / "work").mkdir()
    assert callable(check)
    check(bin, tmp_path / "work")

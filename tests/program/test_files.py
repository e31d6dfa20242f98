"""Each parallelism can be read at a sitting: a short file that opens with its algorithm."""

import ast
import re
from pathlib import Path

import pytest

import rooflight

PROGRAM = Path(rooflight.__file__).with_name("program")
FILES = [
    *(
        path
        for room in ("collective_matmul", "moe", "pipeline")
        for path in PROGRAM.glob(f"{room}/*.py")
    ),
    *PROGRAM.glob("attention/ring*.py"),
    *(PROGRAM / "attention" / "gathered.py", PROGRAM / "model" / "fused_block.py"),
]
ALGORITHMS = (
    *("collective_matmul/matmul", "model/fused_block", "attention/ring", "attention/gathered"),
    *("moe/all_to_all", "moe/ragged", "pipeline/run", "pipeline/train"),
)
IN_THE_NOTATION = re.compile(r"^    .*\w\[[^\]]*_[A-Z]", flags=re.MULTILINE)


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_file_of_a_parallelism_has_less_than_150_lines(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) < 150


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_parallelism_opens_with_its_algorithm_in_the_notation(name: str) -> None:
    text = (PROGRAM / f"{name}.py").read_text(encoding="utf-8")
    assert IN_THE_NOTATION.search(ast.get_docstring(ast.parse(text)) or "")

"""Properties hold for ten times the examples of every day, and for other ones."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = sorted(
    str(path.relative_to(ROOT))
    for path in Path(__file__).parent.rglob("test_*.py")
    if "@given" in path.read_text(encoding="utf-8")
)


@pytest.mark.full
@pytest.mark.parametrize("file", FILES)
def test_properties_hold_for_many_examples(file: str) -> None:
    marked = ["-m", "not full", "--hypothesis-profile=large"]
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *marked, file]
    environment = {k: v for k, v in os.environ.items() if k != "ROOFLIGHT_JOURNAL"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:]
    assert " passed" in done.stdout

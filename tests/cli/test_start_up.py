"""The first commands import little; tests/benchmarks times them beside a bare interpreter."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("word", ("--help", "chips"))
def test_imports_neither_numpy_nor_jax_nor_dataclasses(word: str) -> None:
    code = (
        "import sys; from rooflight.cli.main import main; assert main(sys.argv[1:]) == 0;"
        "heavy = {'numpy', 'jax', 'jaxlib', 'dataclasses', 'tomllib'} & set(sys.modules);"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code, word], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("line", ("slice v5p:4x4x4", "roofline --on v5e", "chips v5e"))
def test_the_first_verbs_need_neither_numpy_nor_jax(line: str) -> None:
    code = (
        "import sys; from rooflight.cli.main import main; assert main(sys.argv[1:]) == 0;"
        "assert not {'numpy', 'jax'} & set(sys.modules)"
    )
    command = [sys.executable, "-c", code, *line.split()]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

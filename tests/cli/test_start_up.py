"""The promise that the first commands start about as fast as the interpreter."""

import statistics
import subprocess
import sys
import time

import pytest

RUNS = 11
LIMIT = 5.0
FRAME = "from rooflight.cli.main import entry; entry()"


def _seconds(*command: str) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, *command], check=True, capture_output=True)
    return time.perf_counter() - start


@pytest.mark.parametrize("word", ("--help", "chips"))
def test_starts_within_five_times_a_bare_interpreter(word: str) -> None:
    _seconds("-c", FRAME, word)  # writes the bytecode
    bare: list[float] = []
    ours: list[float] = []
    for _ in range(RUNS):  # turn by turn, so that a busy machine slows both
        bare.append(_seconds("-c", "pass"))
        ours.append(_seconds("-c", FRAME, word))
    assert statistics.median(ours) <= LIMIT * statistics.median(bare)


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

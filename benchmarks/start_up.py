"""CPU time until the first commands have answered, beside an interpreter that does nothing."""

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.record import Row, ratio_row, row_of

BARE = "bare interpreter"
COMMANDS = ("--help", "chips", "plan train llama3-8b --on v5e:4x4 --batch 64Ki --seq 4096")
_ENTRY = "from rooflight.cli.main import entry; entry()"


def run(*, quick: bool) -> Iterator[Row]:
    turns = {BARE: ["-c", "pass"]}
    turns |= {f"rooflight {c}": ["-c", _ENTRY, *c.split()] for c in COMMANDS[: 2 if quick else 3]}
    for words in turns.values():
        cpu_s(words)  # writes the bytecode
    found: dict[str, list[float]] = {case: [] for case in turns}
    for _ in range(7 if quick else 21):
        for case, words in turns.items():
            found[case].append(cpu_s(words))
    yield from (row_of(case, seconds) for case, seconds in found.items())
    for case in list(turns)[1:3]:
        yield ratio_row(f"{case} / {BARE}", found[case], found[BARE])


def cpu_s(words: list[str], source: Path | None = None) -> float:
    """Of an interpreter, with the package of this environment or of a folder."""
    env = os.environ | ({} if source is None else {"PYTHONPATH": str(source)})
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *words], check=True, capture_output=True, env=env)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

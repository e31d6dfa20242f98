"""Times the auto-sharded and the explicit expert layer on 8 fake devices; tables for docs/moe.md.

Run as a process of its own: `python moe_table_worker.py` prints, `--write` writes into the page.
"""

import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"  # at full optimisation

import argparse
import datetime
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
from moe_worker import compare_layouts, naive_against_explicit

DOC = Path(__file__).parents[2] / "docs" / "moe.md"
BEGIN, END = "<!-- generated: begin -->\n", "<!-- generated: end -->"
SHAPES = ((2048, 64, 64), (8192, 64, 64), (8192, 64, 256), (2048, 256, 512))  # S, D, F
REPEATS = 15


def memory_table() -> Iterator[str]:
    found = naive_against_explicit()
    assert found["error"] < 1e-5 and found["dropped"] == [0, 0]
    yield "| rows of D a device holds (temporary memory / 4D) | N = 2 | N = 4 | N = 8 |"
    yield "|---|---:|---:|---:|"
    for growth, rows in found["rows"].items():
        size = "S = 4096" if growth == "same tokens" else "S = 512 N"
        for name, counts in rows.items():
            cells = " | ".join(f"{count:.0f}" for count in counts)
            yield f"| {name}, {growth} ({size}) | {cells} |"


def seconds(program: Any, arrays: Any) -> float:
    begin = time.perf_counter()
    jax.block_until_ready(program(*arrays))
    return time.perf_counter() - begin


def time_table() -> Iterator[str]:
    """Medians of runs that take turns, so that both see the same machine."""
    yield "| S | D | F | auto | explicit | auto / explicit |"
    yield "|---:|---:|---:|---:|---:|---:|"
    for shape in SHAPES:
        pair = compare_layouts(8, *shape)
        times: dict[str, list[float]] = {"auto": [], "explicit": []}
        for _ in range(REPEATS):
            for name, taken in times.items():
                taken.append(seconds(pair[name], pair["arrays"]))
        auto, explicit = (statistics.median(taken[2:]) for taken in times.values())
        cells = " | ".join(map(str, shape))
        yield f"| {cells} | {auto * 1e3:.1f} ms | {explicit * 1e3:.1f} ms | {auto / explicit:.1f} |"


def report() -> str:
    day = datetime.date.today().isoformat()
    head = f"jax {jax.__version__}, 8 fake devices on {os.cpu_count()} CPU cores, {day}."
    return "\n".join([head, "", *memory_table(), "", *time_table(), ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the tables into docs/moe.md")
    tables = report()
    if not parser.parse_args().write:
        print(tables, end="")
        return
    before, _, rest = DOC.read_text().partition(BEGIN)
    DOC.write_text(before + BEGIN + tables + END + rest.partition(END)[2])


if __name__ == "__main__":
    main()

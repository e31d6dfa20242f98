"""The scores of docs/accuracy.md by date: what `rooflight validate` printed, commit by commit.

    python -m benchmarks.scores            # from the history of the page
    python -m benchmarks.scores --write    # into the page, too

A line for each day on which a figure changed, by the last commit of that day; all are held out.
"""

import argparse
import re
import subprocess
import sys
from collections.abc import Sequence

from benchmarks.page import between, markdown
from benchmarks.record import ROOT

PAGE = ROOT / "docs" / "accuracy.md"
MARK = "scores"
HEADER = ("until", "rows", "dense", "experts", "model out", "source out", "peak memory")
_HEAD = re.compile(r"^training, (\w+): median error ([\d.]+%), mean ([\d.]+%)", re.MULTILINE)
_ROW = re.compile(r"^(dense|experts) +(\d+) .*?([\d.]+%) +([\d.]+%)$", re.MULTILINE)
_PEAKS = re.compile(r"^peak memory: .*?median error ([\d.]+%)", re.MULTILINE)


def scores(page: str) -> tuple[str, ...]:
    """The cells of a page after its date; nothing where it has no figures yet."""
    heads = {blocks: f"{median}, {mean}" for blocks, median, mean in _HEAD.findall(page)}
    rows = dict[str, tuple[str, ...]]()
    for blocks, *cells in _ROW.findall(page):
        rows.setdefault(blocks, tuple(cells))  # the first table is training
    if not {"dense", "experts"} <= {*heads} & {*rows}:
        return ()
    count = sum(int(cells[0]) for cells in rows.values())
    out = [", ".join(rows[blocks][at] for blocks in ("dense", "experts")) for at in (1, 2)]
    peaks = _PEAKS.search(page)
    return (str(count), heads["dense"], heads["experts"], *out, peaks[1] if peaks else "")


def by_day() -> list[list[str]]:
    """The table, oldest first."""
    name = str(PAGE.relative_to(ROOT))
    commits = _git("log", "--first-parent", "--reverse", "--format=%H %cs", "--", name).split("\n")
    found: dict[tuple[str, ...], str] = {}
    for commit, day in (line.split() for line in commits if line):
        if cells := scores(_git("show", f"{commit}:{name}")):
            found[cells] = day
    if cells := scores(PAGE.read_text(encoding="utf-8")):
        found.setdefault(cells, "now")
    last: dict[str, tuple[str, ...]] = {day: cells for cells, day in found.items()}
    return [[day, *cells] for day, cells in last.items()]


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scores", description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"also into {PAGE.name}")
    args = parser.parse_args(words)
    text = markdown([HEADER, *by_day()])
    print(text)
    if args.write:
        page = between(PAGE.read_text(encoding="utf-8"), MARK, text)
        PAGE.write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Records as tables, and the pages of the docs that show them.

A page has a table between `<!-- benchmark: NAME -->` and `<!-- end -->`; `write_pages` renders each
from the file of that name in benchmarks/results.
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.record import RESULTS, ROOT, Change, Record, Row, read_record
from rooflight.units import format_seconds, format_si

_BLOCK = re.compile(r"(<!-- benchmark: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
_VALUES = {"program": "estimated"}  # what a value is, where it was not measured
_COLUMNS: dict[str, Callable[[Row], str]] = {
    "spread": lambda row: _part(row.spread),
    "rounds": lambda row: str(row.rounds or ""),
    "other load": lambda row: _part(row.load),
}


def show(value: float, unit: str) -> str:
    if unit == "s":
        return format_seconds(value)
    if unit == "B":
        return format_si(value, unit)
    return f"{value:.3f}x" if unit == "x" else f"{value:,.{1 if value < 1000 else 0}f} {unit}"


def _part(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"


def record_text(record: Record) -> str:
    """A Markdown table, where and when it was measured, and the notes."""
    more = list(dict.fromkeys(key for row in record.rows for key in row.more))
    header = [
        "case",
        _VALUES.get(record.name, "measured"),
        *_COLUMNS,
        *(re.sub("_[sB]$", "", key).replace("_", " ") for key in more),
    ]
    rows = [
        [row.case, show(row.value, row.unit), *(cell(row) for cell in _COLUMNS.values())]
        + [_more(row, key) for key in more]
        for row in record.rows
    ]
    shown = [c for c in zip(header, *rows, strict=True) if any(c[1:])]
    blocks = [markdown(list(zip(*shown, strict=True))), _caption(record), *record.notes]
    return "\n\n".join(blocks)


def _more(row: Row, key: str) -> str:
    if key not in row.more:
        return ""
    unit = next((u for u in ("s", "B") if key.endswith(f"_{u}")), "")
    return show(row.more[key], unit) if unit else f"{row.more[key]:.3g}"


def _caption(record: Record) -> str:
    machine, words = record.machine, [record.date]
    if machine and machine.cores:
        words.append(f"{machine.cores} cores")
    if machine and machine.flops_per_s and machine.memory_bytes_per_s:
        words.append(format_si(machine.flops_per_s, "FLOP/s"))
        words.append(format_si(machine.memory_bytes_per_s, "B/s"))
    words += [f"commit {record.commit}"] if record.commit else []
    words += [f"other processes used {record.load:.0%} of the machine"] if record.load else []
    return ", ".join(words) + "."


def markdown(lines: Sequence[Sequence[str]]) -> str:
    """The first column to the left, figures to the right."""
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    padded = [
        [cell.rjust(width) if i else cell.ljust(width) for i, (cell, width) in enumerate(pairs)]
        for pairs in (zip(line, widths, strict=True) for line in lines)
    ]
    rule = ["-" * (width - 1) + (":" if i else "-") for i, width in enumerate(widths)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (padded[0], rule, *padded[1:]))


def changes_text(before: Record, after: Record, found: Sequence[Change]) -> str:
    header = ["case", "before", "after", "ratio, above 1 is worse", ""]
    rows = [
        [
            change.after.case,
            show(change.before.value, change.before.unit),
            show(change.after.value, change.after.unit),
            f"{change.ratio:.3f}",
            change.word,
        ]
        for change in found
    ]
    captions = f"before: {_caption(before)}\n\nafter: {_caption(after)}"
    return f"{markdown([header, *rows])}\n\n{captions}"


def rendered(page: str) -> str:
    """A page with each of its tables as the file of that name has it."""

    def block(match: re.Match[str]) -> str:
        record = read_record(RESULTS / f"{match[2]}.json")
        return f"{match[1]}{record_text(record)}\n{match[3]}"

    return _BLOCK.sub(block, page)


def between(page: str, mark: str, text: str) -> str:
    """A page with a table between `<!-- MARK -->` and `<!-- end -->`."""
    before, begin, rest = page.partition(f"<!-- {mark} -->\n")
    _, end, after = rest.partition("<!-- end -->")
    return f"{before}{begin}{text}\n{end}{after}"


def shown(page: str, mark: str) -> list[list[str]]:
    """The cells of that table, its header first."""
    text = page.partition(f"<!-- {mark} -->\n")[2].partition("<!-- end -->")[0]
    lines = [line for line in text.splitlines() if line.startswith("|") and "---" not in line]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def marked(page: str) -> list[str]:
    """The benchmarks that a page shows."""
    return [match[2] for match in _BLOCK.finditer(page)]


def pages() -> list[Path]:
    return sorted((ROOT / "docs").rglob("*.md"))


def write_pages() -> None:
    for path in pages():
        text = path.read_text(encoding="utf-8")
        if (fresh := rendered(text)) != text:
            path.write_text(fresh, encoding="utf-8")

"""A Gantt chart of devices over time, as text and as SVG.

In: a `Gantt`: rows of bars with start and end. Out: one line per row for a terminal, or a picture.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from rooflight.ui.svg import marks as svg
from rooflight.units import format_seconds

_IDLE = "."
_FOLD = "~~"
_LONGEST_FOLD = 12  # times the room
_MARGIN = 24.0
_TOP = 96.0  # title, caption, legend
_ROW = 30.0
_GAP = 6.0
_TICKS = 8
_SMALLEST = 7.0  # pixels of letters that can still be read


@dataclass(frozen=True, slots=True)
class Bar:
    """One piece of work; `part` of `parts` that share the time, drawn side by side."""

    kind: str  # a letter or two: what text shows when a label does not fit
    label: str  # begins with its kind; the picture shows the rest, the colour being the kind
    start: float
    end: float
    tooltip: str = ""
    shade: int = 0  # 0 is the full colour of its kind, more are paler
    part: int = 0
    parts: int = 1


@dataclass(frozen=True, slots=True)
class GanttRow:
    """What one device does; `note` stands at the end of its line."""

    label: str
    bars: tuple[Bar, ...]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Gantt:
    """Rows on one clock; `legend` says what each kind is, in the order of the colours."""

    title: str
    caption: str
    rows: tuple[GanttRow, ...]
    legend: Mapping[str, str]
    number: str  # what the number of a label is
    row: str = ""  # what a row is
    paler: str = ""  # what the paler shades are
    note: str = ""  # what the notes of the rows are
    is_in_seconds: bool = True  # else the clock has no unit

    @property
    def bars(self) -> list[Bar]:
        """The bars of all rows."""
        return [bar for row in self.rows for bar in row.bars]

    @property
    def end(self) -> float:
        """When the last bar ends."""
        return max(bar.end for bar in self.bars)

    @property
    def kinds(self) -> list[str]:
        """The kinds that occur, as the legend orders them."""
        found = {bar.kind for bar in self.bars}
        return [kind for kind in self.legend if kind in found]


def gantt_text(chart: Gantt, *, width: int = 100) -> str:
    """One line per row, at most `width` wide; labels if they all fit, else letters of the kind.

    >>> rows = (GanttRow("0", (Bar("F", "F0", 0, 1), Bar("B", "B0", 3, 5))),)
    >>> legend = {"F": "forward", "B": "backward"}
    >>> print(gantt_text(Gantt("", "", rows, legend, number="microbatch"), width=18))
    0 F0 ......B0---
    <BLANKLINE>
    F forward, B backward, . idle; the number is the microbatch
    """
    before = max(len(row.label) for row in chart.rows)
    after = max(len(row.note) for row in chart.rows)
    room = width - before - after - 2
    scale = _columns_a_second(chart, room)
    has_labels = all(_is_labelled(bar, scale) for bar in chart.bars if _share(bar) > 0)
    columns = math.ceil(chart.end * scale - 1e-9)
    lines = [
        f"{row.label:>{before}} {_fold(_line(row, scale, columns, has_labels), room)} {row.note}"
        for row in chart.rows
    ]
    lines += ["", _key(chart, has_labels=has_labels, is_folded=columns > room), chart.note]
    return "\n".join(line.rstrip() for line in lines).rstrip()


def _key(chart: Gantt, *, has_labels: bool, is_folded: bool) -> str:
    kinds = ", ".join(f"{kind} {chart.legend[kind]}" for kind in chart.kinds)
    left_out = f", {_FOLD} left out" if is_folded else ""
    numbers = f"; the number is the {chart.number}" if has_labels else ""
    return f"{kinds}, {_IDLE} idle{left_out}{numbers}"


def _columns_a_second(chart: Gantt, room: int) -> float:
    """Whole columns for the shortest bar, so that equal bars look equal.

    A chart too long for that is folded, or shrunk when little would be left of it.
    """
    shortest = min(w for bar in chart.bars if (w := _share(bar)) > 0)
    whole = max(1, math.floor(room * shortest / chart.end + 1e-9))
    is_too_long = chart.end / shortest > _LONGEST_FOLD * room
    return room / chart.end if is_too_long else whole / shortest


def _fold(line: str, room: int) -> str:
    """The beginning and the end of a line: where a pipeline fills and drains."""
    if len(line) <= room:
        return line
    half = (room - len(_FOLD)) // 2
    return line[:half] + _FOLD + line[-half:]


def _is_labelled(bar: Bar, scale: float) -> bool:
    start, end = _columns(bar, scale)
    return end - start >= len(bar.label)


def _share(bar: Bar) -> float:
    return (bar.end - bar.start) / bar.parts


def _columns(bar: Bar, scale: float) -> tuple[int, int]:
    start = bar.start + bar.part * _share(bar)
    return round(start * scale), round((start + _share(bar)) * scale)


def _line(row: GanttRow, scale: float, columns: int, has_labels: bool) -> str:
    cells = [_IDLE] * columns
    for bar in row.bars:
        start, end = _columns(bar, scale)
        width = end - start
        cells[start:end] = (
            _labelled(bar.label, width) if has_labels else bar.kind.ljust(width, "-")[:width]
        )
    return "".join(cells)


def _labelled(label: str, width: int) -> str:
    """A label, a rule to the end of its bar, and a gap where there is room for one."""
    return label.ljust(width - 1, "-") + " " if width > len(label) else label[:width]


def gantt_svg(chart: Gantt, *, widest: float = 1600.0) -> str:
    """The chart as SVG: a colour for each kind, a tooltip for each bar."""
    gutter = max(svg.text_width(row.label, 12) for row in chart.rows) + 28
    notes = max(svg.text_width(row.note, 12) for row in chart.rows) + 12
    across = _width(chart, widest)
    left, bottom = _MARGIN + gutter, _TOP + _ROW * len(chart.rows)
    scale = across / chart.end
    body = [svg.text(_MARGIN, 34, chart.title, size=18, weight="bold")]
    body.append(svg.text(_MARGIN, 55, chart.caption, size=13, fill=svg.MUTED))
    body += _legend_svg(chart, _MARGIN, 78)
    middle = (_TOP + bottom - _GAP) / 2
    body.append(
        svg.text(_MARGIN + 10, middle, chart.row, fill=svg.MUTED, anchor="middle", rotated=True)
    )
    body += _clock_svg(chart, left, bottom, scale)
    for i, row in enumerate(chart.rows):
        body += _row_svg(chart, row, (left, _TOP + i * _ROW), scale)
    return svg.document(
        math.ceil(left + across + notes + _MARGIN), bottom + 52, title=chart.title, body=body
    )


def _width(chart: Gantt, widest: float) -> float:
    """Room for a number in the shortest bar, within what a page can show."""
    shortest = min(w for bar in chart.bars if (w := bar.end - bar.start) > 0)
    digits = max(len(bar.label) - len(bar.kind) for bar in chart.bars)
    wanted = (svg.text_width("0" * digits, 11) + 10) * chart.end / shortest
    return min(widest, max(640.0, wanted))


def _legend_svg(chart: Gantt, x: float, y: float) -> list[str]:
    parts: list[str] = []
    entries = [(_colour(chart, kind), f"{kind}  {chart.legend[kind]}") for kind in chart.kinds]
    entries += [(_colour(chart, chart.kinds[0], 1), f"paler: {chart.paler}")] if chart.paler else []
    for fill, words in [*entries, (svg.EMPTY, "idle")]:
        parts.append(svg.rect(x, y - 10, 12, 12, fill=fill))
        parts.append(svg.text(x + 18, y, words, fill=svg.MUTED))
        x += 18 + svg.text_width(words, 12) + 20
    return parts


def _clock_svg(chart: Gantt, left: float, bottom: float, scale: float) -> list[str]:
    parts: list[str] = []
    step = svg.round_step(chart.end / _TICKS)
    for i in range(math.floor(chart.end / step + 1e-9) + 1):
        x, words = left + i * step * scale, _time(chart, i * step)
        parts.append(svg.line(x, _TOP - 4, x, bottom + 4, stroke=svg.GRID))
        parts.append(svg.text(x, bottom + 20, words, size=11, fill=svg.MUTED, anchor="middle"))
    middle = left + chart.end * scale / 2
    parts.append(svg.text(middle, bottom + 40, "time", fill=svg.MUTED, anchor="middle"))
    return parts


def _time(chart: Gantt, value: float) -> str:
    return format_seconds(value) if chart.is_in_seconds else f"{value:g}"


def _row_svg(chart: Gantt, row: GanttRow, corner: tuple[float, float], scale: float) -> list[str]:
    (x, y), height = corner, _ROW - _GAP
    middle = y + height / 2 + 4
    parts = [
        svg.text(x - 10, middle, row.label, anchor="end"),
        svg.rect(x, y, chart.end * scale, height, fill=svg.EMPTY),
        svg.text(x + chart.end * scale + 10, middle, row.note, fill=svg.MUTED),
    ]
    for bar in row.bars:
        if bar.end > bar.start:
            each = height / bar.parts
            box = (x + bar.start * scale, y + bar.part * each, (bar.end - bar.start) * scale, each)
            parts += _bar_svg(chart, bar, box)
    return parts


def _bar_svg(chart: Gantt, bar: Bar, box: tuple[float, float, float, float]) -> list[str]:
    x, y, width, height = box
    parts = [
        svg.rect(
            *box, fill=_colour(chart, bar.kind, bar.shade), stroke=svg.PAPER, tooltip=bar.tooltip
        )
    ]
    words = bar.label.removeprefix(bar.kind)
    size = min(12.0, height * 0.8, (width - 3) / svg.text_width(words or "0", 1))
    if words and size >= _SMALLEST:
        ink = svg.ON_BAR if bar.shade else svg.PAPER
        parts.append(
            svg.text(
                x + width / 2,
                y + height / 2 + size * 0.36,
                words,
                size=size,
                fill=ink,
                anchor="middle",
            )
        )
    return parts


def _colour(chart: Gantt, kind: str, shade: int = 0) -> str:
    """The palette in the order of the legend, mixed with white for paler shades."""
    full = svg.PALETTE[list(chart.legend).index(kind) % len(svg.PALETTE)]
    white = 1 - 0.55**shade
    channels = (int(full[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(c + (255 - c) * white):02x}" for c in channels)

"""What a chip holds, part by part, as bars against its HBM; and along a schedule, as a line.

In: `MemoryStacks`, or bytes by instruction. Out: SVG. Bars share one scale; a dashed line is what
a program may use.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from rooflight.ui.svg import marks as svg
from rooflight.ui.svg.frame import ChartFrame, LinearAxis
from rooflight.ui.text.labels import Box
from rooflight.units import format_si

_MARGIN = 24.0
_ROW = 48.0
_BAR = 20.0
_LEGEND_STEP = 20.0
_LABEL_SIZE = 12
_TICKS = 5
_MOST_POINTS = 1200  # a longer schedule keeps the largest of each part
# A colour for each part, and the ink that can be read on it.
_COLOURS = (
    *zip(svg.PALETTE, (*[svg.PAPER] * 3, *[svg.ON_BAR] * 3), strict=True),
    ("#7b5ea7", svg.PAPER),
    ("#8a949e", svg.ON_BAR),
    *(("#6b4226", svg.PAPER), ("#e6c229", svg.ON_BAR), ("#2f4858", svg.PAPER)),
    *(("#9bc53d", svg.ON_BAR), ("#f4a6b7", svg.ON_BAR)),
)


@dataclass(frozen=True, slots=True)
class Stack:
    """One bar: the bytes of each part, in the order of the parts."""

    label: str
    nbytes: tuple[int, ...]

    @property
    def total(self) -> int:
        return sum(self.nbytes)


@dataclass(frozen=True, slots=True)
class MemoryStacks:
    """Bars of the same parts against the same capacity."""

    title: str
    parts: tuple[str, ...]
    stacks: tuple[Stack, ...]
    capacity_bytes: int

    @property
    def held(self) -> list[int]:
        """The parts that any bar has."""
        return [i for i in range(len(self.parts)) if any(s.nbytes[i] for s in self.stacks)]


def memory_svg(chart: MemoryStacks, *, width: int = 880) -> str:
    """The picture: a legend, a bar for each stack with its total, the line of the capacity."""
    legend, legend_rows = _legend(chart, width)
    top = 84 + _LEGEND_STEP * legend_rows
    bottom = top + _ROW * len(chart.stacks)
    across = width - 2 * _MARGIN - 80  # totals stand at the right
    largest = max(chart.capacity_bytes, *(stack.total for stack in chart.stacks))
    scale = across / largest
    body = [svg.text(_MARGIN, 32, chart.title, size=17, weight="bold"), *legend]
    for i, stack in enumerate(chart.stacks):
        y = top + i * _ROW
        total = format_si(stack.total, "B")
        body += _bar(chart, stack, y, scale)
        body.append(svg.text(width - _MARGIN, y + 35, total, anchor="end", weight="bold"))
    body += _capacity(chart, top, bottom, scale)
    return svg.document(width, bottom + 12, title=chart.title, body=body)


def _colour(part: int) -> tuple[str, str]:
    return _COLOURS[part % len(_COLOURS)]


def _legend(chart: MemoryStacks, width: float) -> tuple[list[str], int]:
    """The parts, in as many rows as they need."""
    parts: list[str] = []
    x, row = _MARGIN, 0
    for i in chart.held:
        step = 18 + svg.text_width(chart.parts[i], _LABEL_SIZE) + 16
        if x + step > width - _MARGIN and x > _MARGIN:
            x, row = _MARGIN, row + 1
        y = 58 + row * _LEGEND_STEP
        parts.append(svg.rect(x, y - 10, 12, 12, fill=_colour(i)[0]))
        parts.append(svg.text(x + 18, y, chart.parts[i], fill=svg.MUTED))
        x += step
    return parts, row + 1


def _bar(chart: MemoryStacks, stack: Stack, y: float, scale: float) -> list[str]:
    parts = [svg.text(_MARGIN, y + 14, stack.label)]
    x = _MARGIN
    for i in chart.held:
        size = stack.nbytes[i] * scale
        if size:
            parts += _segment(chart.parts[i], stack.nbytes[i], (x, y + 20, size), _colour(i))
        x += size
    return parts


def _segment(
    name: str, nbytes: int, place: tuple[float, float, float], colour: tuple[str, str]
) -> list[str]:
    """A part of a bar; its size is written where there is room."""
    (x, y, width), (fill, ink), words = place, colour, format_si(nbytes, "B")
    box = svg.rect(x, y, width, _BAR, fill=fill, stroke=svg.PAPER, tooltip=f"{name}: {words}")
    if svg.text_width(words, 11) + 6 > width:
        return [box]
    return [box, svg.text(x + width / 2, y + 14, words, size=11, fill=ink, anchor="middle")]


def _capacity(chart: MemoryStacks, top: float, bottom: float, scale: float) -> Sequence[str]:
    x = _MARGIN + chart.capacity_bytes * scale
    words = f"HBM: {format_si(chart.capacity_bytes, 'B')}"
    return [
        svg.line(x, top - 4, x, bottom, stroke=svg.INK, width=1.5, dash="6 4"),
        svg.text(x, top - 10, words, anchor="end", weight="bold"),
    ]


def live_svg(
    title: str, nbytes: Sequence[int], at_peak: str, limit_bytes: int | None, *, width: int = 880
) -> str:
    """Bytes in use along a schedule: an instruction lies between two marks of the curve.

    The peak has the name of its instruction; the limit is drawn where it is near.
    """
    peak, count = max(nbytes), len(nbytes)
    limit = limit_bytes if limit_bytes and limit_bytes < 2 * peak else None
    top = 1.1 * max(peak, limit or 0, 1)
    box = Box(84, 64, width - 84 - _MARGIN, 260)
    frame = ChartFrame(box, LinearAxis(0, count), LinearAxis(0, top))
    step = svg.round_step(top / (_TICKS + 1))
    ticks = [i * step for i in range(math.floor(top / step) + 1)]
    body = [svg.text(24, 32, title, size=17, weight="bold")]
    body += frame.grid(
        (),
        [(tick, format_si(tick, "B") if tick else "0") for tick in ticks],
        title=f"{count:,} instructions in the order of the schedule",
    )
    points = _thinned(nbytes)
    stairs = [frame.at(*p) for (x0, y0), (x1, _) in pairwise(points) for p in ((x0, y0), (x1, y0))]
    body.append(svg.polyline([*stairs, frame.at(*points[-1])], stroke=svg.PALETTE[0]))
    if limit:
        y, words = frame.at(0, limit)[1], f"a program may use {format_si(limit, 'B')}"
        body.append(svg.line(box.x, y, box.right, y, stroke=svg.PALETTE[1], dash="6 4"))
        body.append(svg.text(box.right, y - 6, words, fill=svg.PALETTE[1], anchor="end"))
    x, y = frame.at(nbytes.index(peak) + 0.5, peak)
    words = f"peak {format_si(peak, 'B')} at {at_peak}"
    room = svg.text_width(words, 12) / 2
    centre = min(max(x, box.x + room), box.right - room)
    body.append(svg.circle(x, y, 4, fill=svg.PALETTE[0], stroke=svg.PALETTE[0]))
    body.append(svg.text(centre, y - 10, words, anchor="middle"))
    return svg.document(width, box.foot + 56, title=title, body=body)


def _thinned(values: Sequence[int]) -> list[tuple[int, int]]:
    """At most so many points: of each part of a longer curve its largest, so peaks stay."""
    part = math.ceil(len(values) / _MOST_POINTS)
    starts = range(0, len(values), part)
    points = [(at, max(values[at : at + part])) for at in starts]
    return [*points, (len(values), values[-1])]

"""What a chip holds, part by part, as bars against its HBM.

In: `MemoryStacks`. Out: SVG. Bars share one scale; a dashed line is what a program may use.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rooflight.ui.svg import marks as svg
from rooflight.units import format_si

_MARGIN = 24.0
_ROW = 48.0
_BAR = 20.0
_LEGEND_STEP = 20.0
_LABEL_SIZE = 12
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

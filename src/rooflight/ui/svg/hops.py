"""One moment of a collective as a picture: boxes for chips, what each holds, arrows that move it.

In: a `NetworkMap`, the cells of every chip and the arrows of a `HopsStill`. Out: SVG. A cell is one
part of the array: filled as far as it is here, with its number when it is whole.
"""

import colorsys
import math
from collections.abc import Sequence
from dataclasses import dataclass

from rooflight.ui.svg import marks as svg
from rooflight.ui.svg.network import NetworkMap, Point
from rooflight.units import format_seconds

_CELL = 15.0
_PAD = 5.0
_HEAD = 17.0  # a chip's number
_GAP = 44.0  # between boxes
_TOP, _MARGIN = 62.0, 34.0
_STUB = 30.0  # of an arrow that goes round an end
_APART = 5.0  # the two directions of a link
_MOST_CELLS = 16  # of one chip; more become one bar
_LEAST = 2.5  # of a cell that has something in it
_LABELLED = 16  # arrows; more would cover each other


@dataclass(frozen=True, slots=True)
class Arrow:
    """Something under way from one place to another, in a word or two."""

    source: int
    target: int
    words: str


@dataclass(frozen=True, slots=True)
class HopsStill:
    """A moment: until when, of how much, what every chip holds by then, what moved."""

    title: str
    now_s: float
    end_s: float
    cells: tuple[tuple[float, ...], ...]
    arrows: tuple[Arrow, ...]


def hops_svg(still: HopsStill, layout: NetworkMap) -> str:
    """The picture; every still of a film has the same size, so that nothing jumps."""
    frame = _frame(still, layout)
    body = [
        svg.text(_MARGIN, 26, still.title, size=15, weight="bold"),
        *_clock(still, frame.width),
        *(_link(frame, *link) for link in layout.links if layout.is_near(*link)),
    ]
    show_words = len(still.arrows) <= _LABELLED and layout.shape != "tree"
    for arrow in still.arrows:
        body += _arrow(frame, arrow, words=arrow.words if show_words else "")
    for number in range(len(layout.places)):
        body += _box(frame, number, still)
    return svg.document(frame.width, frame.height, title=still.title, body=body)


@dataclass(frozen=True, slots=True)
class _Frame:
    """Pixels: the size of a box, of a unit of the layout, and of the whole picture."""

    layout: NetworkMap
    columns: int
    box: Point
    unit: Point
    origin: Point
    width: float
    height: float

    def middle(self, number: int) -> Point:
        x, y = self.layout.places[number]
        return self.origin[0] + x * self.unit[0], self.origin[1] + y * self.unit[1]

    def half(self, number: int) -> Point:
        """Half of the width and height of a box; a switch is flat."""
        if number < self.layout.num_chips:
            return self.box[0] / 2, self.box[1] / 2
        return 34.0, 13.0


def _frame(still: HopsStill, layout: NetworkMap) -> _Frame:
    count = len(still.cells[0])
    columns = min(count, 4)
    rows = math.ceil(count / columns) if count <= _MOST_CELLS else 1
    box = max(columns * _CELL + 2 * _PAD, 44.0), rows * _CELL + _HEAD + _PAD
    gap = 14.0 if layout.shape == "tree" else _GAP
    unit = box[0] + gap, box[1] + (_GAP if layout.shape != "ring" else gap)
    if layout.shape == "ring":
        unit = max(unit), max(unit)
    xs, ys = zip(*layout.places, strict=True)
    left, top = _MARGIN + _STUB / 2 + box[0] / 2, _TOP + _STUB / 2 + box[1] / 2
    width = (max(xs) - min(xs)) * unit[0] + 2 * left
    height = (max(ys) - min(ys)) * unit[1] + box[1] + _TOP + _STUB + 18
    origin = left - min(xs) * unit[0], top - min(ys) * unit[1]
    if width < 420:
        origin, width = (origin[0] + (420 - width) / 2, origin[1]), 420.0
    return _Frame(layout, columns, box, unit, origin, width, height)


def _clock(still: HopsStill, width: float) -> list[str]:
    """How much of the time has passed, as a bar and in words."""
    across = width - 2 * _MARGIN
    part = still.now_s / still.end_s if still.end_s else 1.0
    words = f"{format_seconds(still.now_s)} of {format_seconds(still.end_s)}"
    return [
        svg.rect(_MARGIN, 36, across, 5, fill=svg.EMPTY),
        svg.rect(_MARGIN, 36, across * part, 5, fill=svg.PALETTE[0]),
        svg.text(_MARGIN, 57, words, fill=svg.MUTED),
    ]


def _link(frame: _Frame, source: int, target: int) -> str:
    return svg.line(*frame.middle(source), *frame.middle(target), stroke=svg.GRID, width=4)


def _box(frame: _Frame, number: int, still: HopsStill) -> list[str]:
    (x, y), (across, down) = frame.middle(number), frame.half(number)
    left, top, name = x - across, y - down, frame.layout.names[number]
    is_chip = number < frame.layout.num_chips
    parts = [
        _outline(left, top, 2 * across, 2 * down),
        svg.text(x, top + (13 if is_chip else 17), name, size=11, anchor="middle", weight="bold"),
    ]
    if is_chip and len(still.cells[number]) > _MOST_CELLS:
        parts += _bar(frame, left, top, still.cells[number])
    elif is_chip:
        cells = still.cells[number]
        start = x - frame.columns * _CELL / 2, top + _HEAD
        for at, value in enumerate(cells):
            row, column = divmod(at, frame.columns)
            place = start[0] + column * _CELL, start[1] + row * _CELL
            parts += _cell(place, value, at, len(cells))
    return parts


def _bar(frame: _Frame, left: float, top: float, cells: Sequence[float]) -> list[str]:
    """Many parts as one bar, and how many they are."""
    part, across = sum(cells) / len(cells), frame.box[0] - 2 * _PAD
    words = f"{sum(cells):.3g} of {len(cells)}"
    foot = top + _HEAD + _CELL
    return [
        svg.rect(left + _PAD, foot - 4, across * part, 4, fill=svg.PALETTE[0]),
        svg.text(left + frame.box[0] / 2, foot - 7, words, size=8, anchor="middle"),
    ]


def _outline(x: float, y: float, width: float, height: float) -> str:
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="4"'
        f' fill="{svg.EMPTY}" stroke="{svg.MUTED}"/>'
    )


def _cell(place: Point, value: float, at: int, count: int) -> list[str]:
    """Filled from below as far as it is here; whole cells carry their number."""
    if value <= 0:
        return []
    (x, y), side = place, _CELL - 1
    height = max(side * min(value, 1.0), _LEAST)
    parts = [svg.rect(x, y + side - height, side, height, fill=_colour(at, count))]
    if value >= 1 - 1e-6:
        size = 9 if at < 100 else 7
        parts.append(
            svg.text(
                x + side / 2,
                y + side / 2 + 3.2,
                str(at),
                size=size,
                fill=svg.ON_BAR,
                anchor="middle",
            )
        )
    return parts


def _colour(at: int, count: int) -> str:
    """A hue for each part, pale enough for dark letters."""
    red, green, blue = colorsys.hls_to_rgb((0.55 + at / count) % 1.0, 0.76, 0.62)
    return f"#{round(red * 255):02x}{round(green * 255):02x}{round(blue * 255):02x}"


def _arrow(frame: _Frame, arrow: Arrow, *, words: str) -> list[str]:
    if frame.layout.is_near(arrow.source, arrow.target):
        return _straight(frame, arrow, words)
    return _around(frame, arrow, words)


def _straight(frame: _Frame, arrow: Arrow, words: str) -> list[str]:
    """From rim to rim, a little to the right of the line, so that both directions can be seen."""
    start, end = frame.middle(arrow.source), frame.middle(arrow.target)
    across, down = end[0] - start[0], end[1] - start[1]
    length = math.hypot(across, down) or 1.0
    ux, uy = across / length, down / length
    aside = -uy * _APART, ux * _APART
    first = _rim(frame.half(arrow.source), ux, uy) + 1
    last = length - _rim(frame.half(arrow.target), ux, uy) - 2
    points = [(start[0] + ux * t + aside[0], start[1] + uy * t + aside[1]) for t in (first, last)]
    colour = _direction(ux if frame.layout.shape != "tree" else 0.0, uy)
    middle = (points[0][0] + points[1][0]) / 2, (points[0][1] + points[1][1]) / 2
    return [*_headed(points, colour), *_words(words, middle, (-uy, ux))]


def _around(frame: _Frame, arrow: Arrow, words: str) -> list[str]:
    """A link round an end, or to another plane: it leaves here and comes in there."""
    start, end = frame.middle(arrow.source), frame.middle(arrow.target)
    across, down = start[0] - end[0], start[1] - end[1]
    if not frame.layout.is_in_plane(arrow.source, arrow.target):
        ux, uy = (0.75, -0.66) if arrow.target > arrow.source else (-0.75, 0.66)
    else:
        length = math.hypot(across, down) or 1.0
        ux, uy = across / length, down / length
    colour = _direction(ux, uy)
    aside = -uy * _APART, ux * _APART
    out = _rim(frame.half(arrow.source), ux, uy) + 1
    into = _rim(frame.half(arrow.target), -ux, -uy) + 2
    leave = [
        (start[0] + ux * t + aside[0], start[1] + uy * t + aside[1]) for t in (out, out + _STUB / 2)
    ]
    enter = [
        (end[0] - ux * t + aside[0], end[1] - uy * t + aside[1]) for t in (into + _STUB / 2, into)
    ]
    return [*_headed(leave, colour), *_headed(enter, colour), *_words(words, leave[1], (-uy, ux))]


def _rim(half: Point, ux: float, uy: float) -> float:
    """How far the rim of a box is from its middle in one direction."""
    ways = [side / abs(step) for side, step in zip(half, (ux, uy), strict=True) if abs(step) > 1e-9]
    return min(ways)


def _direction(ux: float, uy: float) -> str:
    """Right and down in one colour, left and up in another; the heads say the same."""
    return svg.PALETTE[0] if ux + uy > 0 else svg.PALETTE[1]


def _headed(points: Sequence[Point], colour: str) -> list[str]:
    """A shaft and a head in one stroke."""
    (x1, y1), (x2, y2) = points
    length = math.hypot(x2 - x1, y2 - y1) or 1.0
    ux, uy = (x2 - x1) / length, (y2 - y1) / length
    left = (x2 - 7 * ux - 4 * uy, y2 - 7 * uy + 4 * ux)
    right = (x2 - 7 * ux + 4 * uy, y2 - 7 * uy - 4 * ux)
    return [svg.polyline([(x1, y1), (x2, y2), left, (x2, y2), right], stroke=colour)]


def _words(words: str, at: Point, aside: Point) -> list[str]:
    if not words:
        return []
    x, y = at[0] + 9 * aside[0], at[1] + 9 * aside[1] + 3
    anchor = "middle" if abs(aside[0]) < 0.5 else "start" if aside[0] > 0 else "end"
    return [svg.text(x, y, words, size=9, fill=svg.MUTED, anchor=anchor)]

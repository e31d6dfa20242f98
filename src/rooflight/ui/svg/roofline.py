"""The roofline as a picture: attainable FLOP/s over intensity, both axes logarithmic.

In: `RoofLine`s (a chip at a dtype, on a memory) and labelled `PlotPoint`s. Out: SVG, or 72 x 20
characters for a terminal.
"""

import math
import string
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, pairwise

from rooflight.ui.svg import marks as svg
from rooflight.ui.svg.frame import ChartFrame
from rooflight.ui.svg.marks import LogAxis, tick_label
from rooflight.ui.text.labels import Anchor, Box, place_labels
from rooflight.units import format_si

_LABEL_SIZE = 12
_LEGEND_STEP = 20
_MARK_WEIGHT = 50  # a label on a mark is worse than one across a line
_RIDGE_MARKS = string.ascii_uppercase
_POINT_MARKS = "123456789" + string.ascii_lowercase


@dataclass(frozen=True, slots=True)
class RoofLine:
    """A flat roof of `flops_per_s` and a slope of `bytes_per_s`; they meet at the ridge."""

    label: str
    flops_per_s: float
    bytes_per_s: float

    @property
    def ridge(self) -> float:
        """FLOP per byte where slope and roof meet."""
        return self.flops_per_s / self.bytes_per_s

    def height(self, intensity: float) -> float:
        """FLOP/s under this roof."""
        return min(self.flops_per_s, self.bytes_per_s * intensity)

    @property
    def caption(self) -> str:
        """The legend's words."""
        roof, slope = format_si(self.flops_per_s, "FLOP/s"), format_si(self.bytes_per_s, "B/s")
        return f"{self.label}: {roof}, {slope}, ridge {format_si(self.ridge, 'FLOP/B')}"


@dataclass(frozen=True, slots=True)
class PlotPoint:
    """An op at its intensity and the FLOP/s it reaches."""

    label: str
    intensity: float
    flops_per_s: float

    @property
    def caption(self) -> str:
        """The legend's words."""
        rate, intensity = format_si(self.flops_per_s, "FLOP/s"), format_si(self.intensity, "FLOP/B")
        return f"{self.label}: {rate} at {intensity}"


def _spans(roofs: Sequence[RoofLine], points: Sequence[PlotPoint]) -> tuple[LogAxis, LogAxis]:
    """Whole decades across, so that each ridge shows both sides; upwards what that needs."""
    reach = [r.ridge * factor for r in roofs for factor in (0.02, 8)]
    across = [math.log10(v) for v in [*reach, *(p.intensity for p in points)]]
    x = LogAxis(math.floor(min(across) + 1e-9), math.ceil(max(across) - 1e-9))
    feet = [r.height(x.value(0)) for r in roofs]
    heights = [*feet, *(r.flops_per_s for r in roofs), *(p.flops_per_s for p in points)]
    up = [math.log10(v) for v in heights]
    return x, LogAxis(min(up) - 0.15, max(up) + 0.35)


def roofline_text(
    roofs: Sequence[RoofLine],
    points: Sequence[PlotPoint] = (),
    *,
    width: int = 72,
    height: int = 20,
) -> str:
    """A plot for the terminal: ridges are A, B, ..., points 1, 2, ..., several in a cell `*`.

    Axis and ticks are within `width` x `height`; one line of legend for each roof and point
    follows.
    """
    x, y = _spans(roofs, points)
    gutter = 7
    cols, rows = width - gutter - 1, height - 3
    grid = [[" "] * cols for _ in range(rows)]

    def cell(intensity: float, flops_per_s: float) -> tuple[int, int]:
        row = round((1 - y.share(flops_per_s)) * (rows - 1))
        return row, round(x.share(intensity) * (cols - 1))

    for roof in roofs:
        for col in range(cols):
            intensity = x.value(col / (cols - 1))
            row, _ = cell(intensity, roof.height(intensity))
            grid[row][col] = "-" if intensity >= roof.ridge else "/"
    marks = [(m, r.ridge, r.flops_per_s) for m, r in zip(cycle(_RIDGE_MARKS), roofs, strict=False)]
    marks += [
        (m, p.intensity, p.flops_per_s) for m, p in zip(cycle(_POINT_MARKS), points, strict=False)
    ]
    _set_marks(grid, [(mark, cell(*at)) for mark, *at in marks])
    gutters = {cell(x.value(0), tick)[0]: tick_label(tick) for tick in y.decades}
    lines = ["FLOP/s"]
    lines += [f"{gutters.get(i, ''):>{gutter}}|{''.join(r)}".rstrip() for i, r in enumerate(grid)]
    lines += _text_axis(x, gutter, cols)
    captions = [roof.caption for roof in roofs] + [point.caption for point in points]
    return "\n".join(
        [*lines, *(f"{mark}  {c}" for (mark, *_), c in zip(marks, captions, strict=True))]
    )


def _set_marks(grid: list[list[str]], marks: Sequence[tuple[str, tuple[int, int]]]) -> None:
    """Writes the marks; two that fall in one cell become a `*`."""
    cells = [cell for _, cell in marks]
    for mark, (row, col) in marks:
        grid[row][col] = "*" if cells.count((row, col)) > 1 else mark


def _text_axis(x: LogAxis, gutter: int, cols: int) -> list[str]:
    rule, ticks = ["-"] * cols, [" "] * (gutter + cols + 8)
    end = 0
    for decade in x.decades:
        col = round(x.share(decade) * (cols - 1))
        rule[col] = "+" if col else "-"  # the corner is a tick already
        label = tick_label(decade)
        start = min(gutter + 1 + col - len(label) // 2, gutter + 1 + cols - len(label))
        if start > end:
            ticks[start : start + len(label)] = label
            end = start + len(label)
    title = "FLOP/B".rjust(gutter)
    return [" " * gutter + "+" + "".join(rule), title + "".join(ticks[gutter:]).rstrip()]


def roofline_svg(
    roofs: Sequence[RoofLine],
    points: Sequence[PlotPoint] = (),
    *,
    title: str = "Roofline",
    width: int = 800,
    height: int = 520,
) -> str:
    """A log-log plot: decade ticks, a line and ridge per roof, labelled points, a legend."""
    top = 52 + _LEGEND_STEP * len(roofs)
    x, y = _spans(roofs, points)
    frame = ChartFrame(Box(72, top, width - 72 - 24, height - top - 56), x, y)
    across, up = ([(d, tick_label(d)) for d in axis.decades] for axis in (x, y))
    colours = [svg.PALETTE[i % len(svg.PALETTE)] for i in range(len(roofs))]
    body = [svg.text(24, 32, title, size=17, weight="bold")]
    body += frame.grid(across, up, title="intensity (FLOP/B)")
    middle = frame.box.at(0, 0.5)[1]
    body.append(svg.text(24, middle, "FLOP/s", anchor="middle", size=13, rotated=True))
    for i, (roof, colour) in enumerate(zip(roofs, colours, strict=True)):
        foot = 54 + _LEGEND_STEP * i
        body += [svg.line(24, foot - 4, 50, foot - 4, stroke=colour, width=3)]
        body += [
            svg.text(58, foot, roof.caption, size=_LABEL_SIZE),
            svg.polyline(_corners(frame, x, roof), stroke=colour, width=1.5 + len(roofs) - i),
        ]
    spots = [
        _Spot(frame.at(r.ridge, r.flops_per_s), f"ridge {format_si(r.ridge, 'FLOP/B')}", 6, c)
        for r, c in zip(roofs, colours, strict=True)
    ]
    spots += [_Spot(frame.at(p.intensity, p.flops_per_s), p.label, 3.5, svg.INK) for p in points]
    drawing = [dot for roof in roofs for dot in _dots(_corners(frame, x, roof))]
    body += _labelled(spots, drawing, frame.box)
    return svg.document(width, height, title=title, body=body)


def _corners(frame: ChartFrame, x: LogAxis, roof: RoofLine) -> list[tuple[float, float]]:
    """The slope's foot, the ridge, and the end of the roof."""
    return [frame.at(knot, roof.height(knot)) for knot in (x.value(0), roof.ridge, x.value(1))]


@dataclass(frozen=True, slots=True)
class _Spot:
    """A mark with its words: an open ring for a ridge, a dot that fits inside it for a point."""

    at: tuple[float, float]
    words: str
    radius: float
    colour: str

    @property
    def fill(self) -> str:
        return self.colour if self.colour == svg.INK else svg.PAPER

    @property
    def anchor(self) -> Anchor:
        return Anchor(*self.at, svg.text_width(self.words, _LABEL_SIZE), _LABEL_SIZE)

    def label(self, box: Box) -> str:
        middle, baseline = box.middle, box.foot - 2
        return svg.text(middle, baseline, self.words, fill=self.colour, anchor="middle")


def _labelled(
    spots: Sequence[_Spot], drawing: Sequence[tuple[float, float]], box: Box
) -> list[str]:
    """Ridges (open) and points (filled), each with a label that covers nothing."""
    covered = [*drawing, *(spot.at for spot in spots for _ in range(_MARK_WEIGHT))]
    boxes = place_labels([s.anchor for s in spots], drawing=covered, frame=box)
    leaders = [part for s, place in zip(spots, boxes, strict=True) for part in _leader(s.at, place)]
    dots = [svg.circle(*s.at, s.radius, fill=s.fill, stroke=s.colour) for s in spots]
    return leaders + dots + [s.label(place) for s, place in zip(spots, boxes, strict=True)]


def _dots(corners: Sequence[tuple[float, float]], step: float = 4) -> list[tuple[float, float]]:
    """Points along a line, dense enough that no label can slip between two."""
    dots: list[tuple[float, float]] = []
    for (x1, y1), (x2, y2) in pairwise(corners):
        count = max(1, round(math.dist((x1, y1), (x2, y2)) / step))
        dots += [(x1 + (x2 - x1) * i / count, y1 + (y2 - y1) * i / count) for i in range(count + 1)]
    return dots


def _leader(at: tuple[float, float], box: Box) -> list[str]:
    """A thin line to a label that had to move away from its mark."""
    end = box.nearest(*at)
    return [svg.line(*at, *end, stroke=svg.MUTED)] if math.dist(at, end) > 18 else []

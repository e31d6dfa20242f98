"""Predicted against measured seconds as a picture, both axes logarithmic: one dot for each row.

In: an `AccuracyPlot`. Out: SVG. The diagonal is a perfect answer, the band 10 % either way; each
dot says its row and error where a pointer rests on it. Dots without words are one path a series.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from rooflight.ui.svg import marks as svg
from rooflight.ui.svg.marks import LogAxis
from rooflight.units import format_seconds

_LEFT, _TOP, _BOTTOM, _RIGHT = 84.0, 56.0, 60.0, 230.0
_SIDE = 5.0
_BAND = 1.1


@dataclass(frozen=True, slots=True)
class Dot:
    """One row: seconds measured and predicted, the series it belongs to, words for a pointer."""

    measured_s: float
    predicted_s: float
    series: str
    words: str


@dataclass(frozen=True, slots=True)
class AccuracyPlot:
    """A title and its dots; at least one."""

    title: str
    dots: tuple[Dot, ...]

    @property
    def series(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(dot.series for dot in self.dots))


def accuracy_svg(plot: AccuracyPlot, *, size: int = 520) -> str:
    """The picture."""
    axis = _axis(plot)
    width, height = _LEFT + size + _RIGHT, _TOP + size + _BOTTOM
    body = [svg.text(24, 32, plot.title, size=17, weight="bold"), *_grid(axis, size)]
    colours = dict(zip(plot.series, svg.PALETTE, strict=False))
    for name, colour in colours.items():
        body += _dots(axis, size, [dot for dot in plot.dots if dot.series == name], colour)
    body += _legend(plot, colours, size)
    return svg.document(width, height, title=plot.title, body=body)


def _dots(axis: LogAxis, size: int, dots: Sequence[Dot], colour: str) -> list[str]:
    places = [(_place(axis, size, dot.measured_s, dot.predicted_s), dot.words) for dot in dots]
    half = _SIDE / 2
    boxes = [
        svg.rect(x - half, y - half, _SIDE, _SIDE, fill=colour, tooltip=words)
        for (x, y), words in places
        if words
    ]
    path = "".join(f"M{x:.0f} {y:.0f}h0" for (x, y), words in places if not words)
    look = f'stroke-width="{_SIDE - 1:g}" stroke-linecap="round" stroke-opacity="0.6"'
    return [*boxes, *([f'<path d="{path}" stroke="{colour}" {look}/>'] if path else [])]


def _axis(plot: AccuracyPlot) -> LogAxis:
    every = [s for dot in plot.dots for s in (dot.measured_s, dot.predicted_s)]
    low, high = math.log10(min(every)), math.log10(max(every))
    room = max(0.05 * (high - low), 0.1)
    return LogAxis(low - room, high + room)


def _place(axis: LogAxis, size: int, measured_s: float, predicted_s: float) -> tuple[float, float]:
    return _LEFT + axis.share(measured_s) * size, _TOP + (1 - axis.share(predicted_s)) * size


def _grid(axis: LogAxis, size: int) -> list[str]:
    body: list[str] = []
    for tick in axis.ticks:
        x, y = _place(axis, size, tick, tick)
        body.append(svg.line(x, _TOP, x, _TOP + size, stroke=svg.GRID))
        body.append(svg.line(_LEFT, y, _LEFT + size, y, stroke=svg.GRID))
        label = format_seconds(tick)
        body.append(svg.text(x, _TOP + size + 18, label, size=11, fill=svg.MUTED, anchor="middle"))
        body.append(svg.text(_LEFT - 8, y + 4, label, size=11, fill=svg.MUTED, anchor="end"))
    first, last = axis.value(0.0), axis.value(1.0)
    for ratio, dash in ((1.0, ""), (_BAND, "4 4"), (1 / _BAND, "4 4")):
        start = _place(axis, size, first * max(1.0, 1 / ratio), first * max(1.0, ratio))
        end = _place(axis, size, last / max(1.0, ratio), last / max(1.0, 1 / ratio))
        body.append(svg.line(*start, *end, stroke=svg.MUTED, dash=dash))
    body.append(svg.text(_LEFT + size / 2, _TOP + size + 44, "measured", anchor="middle"))
    body.append(svg.text(22, _TOP + size / 2, "predicted", anchor="middle", rotated=True))
    return body


def _legend(plot: AccuracyPlot, colours: Mapping[str, str], size: int) -> list[str]:
    body: list[str] = []
    for row, (name, colour) in enumerate(colours.items()):
        errors = [abs(d.predicted_s / d.measured_s - 1) for d in plot.dots if d.series == name]
        y = _TOP + 12 + 44 * row
        body.append(svg.rect(_LEFT + size + 16, y - 8, 10, 10, fill=colour))
        body.append(svg.text(_LEFT + size + 32, y + 1, name, weight="bold"))
        words = f"{len(errors)} rows, median error {median(errors):.1%}"
        body.append(svg.text(_LEFT + size + 32, y + 18, words))
    return body

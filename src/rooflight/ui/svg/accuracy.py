"""Predicted against measured seconds as a picture, both axes logarithmic: one dot for each row.

In: an `AccuracyPlot`. Out: SVG. The diagonal is a perfect answer, the band 10 % either way; each
dot says its row and error where a pointer rests on it. Dots without words are one path a series.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from rooflight.ui.svg import marks as svg
from rooflight.ui.svg.frame import ChartFrame, log_axis
from rooflight.ui.svg.marks import LogAxis
from rooflight.ui.text.labels import Box
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
    every = [s for dot in plot.dots for s in (dot.measured_s, dot.predicted_s)]
    room = max(0.05 * math.log10(max(every) / min(every)), 0.1)
    axis = log_axis(every, room, room)
    frame = ChartFrame(Box(_LEFT, _TOP, size, size), axis, axis)
    width, height = _LEFT + size + _RIGHT, _TOP + size + _BOTTOM
    ticks = [(tick, format_seconds(tick)) for tick in axis.ticks]
    body = [svg.text(24, 32, plot.title, size=17, weight="bold")]
    body += [*frame.grid(ticks, ticks, title="measured"), *_diagonals(frame, axis)]
    body.append(svg.text(22, _TOP + size / 2, "predicted", anchor="middle", rotated=True))
    colours = dict(zip(plot.series, svg.PALETTE, strict=False))
    for name, colour in colours.items():
        body += _dots(frame, [dot for dot in plot.dots if dot.series == name], colour)
    body += _legend(plot, colours, size)
    return svg.document(width, height, title=plot.title, body=body)


def _dots(frame: ChartFrame, dots: Sequence[Dot], colour: str) -> list[str]:
    places = [(frame.at(dot.measured_s, dot.predicted_s), dot.words) for dot in dots]
    half = _SIDE / 2
    boxes = [
        svg.rect(x - half, y - half, _SIDE, _SIDE, fill=colour, tooltip=words)
        for (x, y), words in places
        if words
    ]
    path = "".join(f"M{x:.0f} {y:.0f}h0" for (x, y), words in places if not words)
    look = f'stroke-width="{_SIDE - 1:g}" stroke-linecap="round" stroke-opacity="0.6"'
    return [*boxes, *([f'<path d="{path}" stroke="{colour}" {look}/>'] if path else [])]


def _diagonals(frame: ChartFrame, axis: LogAxis) -> Iterator[str]:
    """A perfect answer, and the band around it."""
    first, last = axis.value(0.0), axis.value(1.0)
    for ratio, dash in ((1.0, ""), (_BAND, "4 4"), (1 / _BAND, "4 4")):
        start = frame.at(first * max(1.0, 1 / ratio), first * max(1.0, ratio))
        end = frame.at(last / max(1.0, ratio), last / max(1.0, 1 / ratio))
        yield svg.line(*start, *end, stroke=svg.MUTED, dash=dash)


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

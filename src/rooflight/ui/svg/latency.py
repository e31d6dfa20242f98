"""Latencies of a simulation as a picture: seconds, logarithmic, against the share of requests.

In: a `LatencyPlot`. Out: SVG. Each line carries its name at its right end.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from rooflight.ui.svg import marks as svg
from rooflight.ui.svg.marks import LogAxis
from rooflight.ui.text.labels import Box
from rooflight.units import format_seconds

_LEFT, _TOP, _BOTTOM, _NAMES = 72.0, 64.0, 56.0, 190.0
_LABEL_STEP = 17.0


@dataclass(frozen=True, slots=True)
class LatencyLine:
    """Seconds that 1 %, 2 % ... 99 % of requests stay within."""

    label: str
    seconds: Sequence[float]
    is_prediction: bool = False  # of the line before it: dashed, in the same colour

    @property
    def drawn(self) -> list[tuple[int, float]]:
        """What a logarithmic axis can show."""
        return [(at, s) for at, s in enumerate(self.seconds, start=1) if s > 0]


@dataclass(frozen=True, slots=True)
class LatencyPlot:
    """Lines, and what was promised."""

    title: str
    lines: Sequence[LatencyLine]
    slos: Sequence[tuple[str, float]]  # name, seconds

    @property
    def drawn(self) -> list[LatencyLine]:
        return [line for line in self.lines if line.drawn]


def latency_svg(plot: LatencyPlot, *, width: int = 880, height: int = 470) -> str:
    """The picture: a line for each latency, a dashed line for each promise."""
    frame = Box(_LEFT, _TOP, width - _LEFT - _NAMES, height - _TOP - _BOTTOM)
    y = _axis(plot)
    body = [svg.text(24, 32, plot.title, size=17, weight="bold"), *_grid(frame, y)]
    for name, seconds in plot.slos:
        at = _place(frame, y, 50, seconds)[1]
        body.append(svg.line(frame.x, at, frame.right, at, stroke=svg.MUTED, dash="5 4"))
        body.append(svg.text(frame.x + 6, at - 5, name, fill=svg.MUTED))
    names, number = _name_heights(plot, frame, y), -1
    for line, name_y in zip(plot.drawn, names, strict=True):
        number += not line.is_prediction
        colour = svg.PALETTE[number % len(svg.PALETTE)]
        places = [_place(frame, y, at, seconds) for at, seconds in line.drawn]
        dash = "6 4" if line.is_prediction else ""
        body.append(svg.polyline(places, stroke=colour, dash=dash))
        body.append(svg.line(*places[-1], frame.right + 14, name_y, stroke=colour))
        body.append(svg.text(frame.right + 20, name_y + 4, line.label))
    return svg.document(width, height, title=plot.title, body=body)


def _axis(plot: LatencyPlot) -> LogAxis:
    seconds = [s for line in plot.drawn for _, s in line.drawn]
    shown = [math.log10(s) for s in (*seconds, *(s for _, s in plot.slos))] or [0.0]
    return LogAxis(min(shown) - 0.1, max(shown) + 0.1)


def _place(frame: Box, y: LogAxis, percent: float, seconds: float) -> tuple[float, float]:
    return frame.at(percent / 100, y.share(seconds))


def _grid(frame: Box, y: LogAxis) -> list[str]:
    foot = frame.foot
    parts: list[str] = []
    for percent in range(0, 101, 10):
        at = frame.at(percent / 100, 0)[0]
        parts.append(svg.line(at, frame.y, at, foot, stroke=svg.GRID))
        parts.append(svg.text(at, foot + 18, f"{percent} %", fill=svg.MUTED, anchor="middle"))
    for tick in y.ticks:
        at = _place(frame, y, 0, tick)[1]
        parts.append(svg.line(frame.x, at, frame.right, at, stroke=svg.GRID))
        label = format_seconds(tick)
        parts.append(svg.text(frame.x - 8, at + 4, label, fill=svg.MUTED, anchor="end"))
    parts.append(svg.text(frame.middle, foot + 42, "share of requests", anchor="middle", size=13))
    return parts


def _name_heights(plot: LatencyPlot, frame: Box, y: LogAxis) -> list[float]:
    """Beside the right ends, pushed apart where two would meet."""
    ends = [_place(frame, y, *line.drawn[-1])[1] for line in plot.drawn]
    order = sorted(range(len(ends)), key=lambda index: ends[index])
    for before, after in pairwise(order):
        ends[after] = max(ends[after], ends[before] + _LABEL_STEP)
    return ends

"""A training run step by step: its loss, and the seconds of a step below it.

In: a `RunPlot`. Out: SVG with two panels over one axis of steps. A long run keeps the mean of each
part of its loss and the longest step of it, so that a slow step is seen; restarts are dashed.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from rooflight.ui.svg import marks as svg
from rooflight.ui.svg.frame import ChartFrame, LinearAxis, Ticks, log_axis
from rooflight.ui.svg.marks import LogAxis, tick_label
from rooflight.ui.text.labels import Box
from rooflight.units import format_seconds

_LEFT, _RIGHT, _TOP, _PANEL, _BETWEEN, _FOOT = 84.0, 24.0, 64.0, 190.0, 56.0, 56.0
_MOST_POINTS = 600
_TICKS = 5
_BEGAN = "5 4"


@dataclass(frozen=True, slots=True)
class RunPlot:
    """Steps in order, what each lost and took; where an attempt began; what was planned."""

    title: str
    steps: tuple[int, ...]
    losses: tuple[float, ...]
    seconds: tuple[float, ...]
    begun: tuple[int, ...] = ()
    planned_s: float | None = None


def run_svg(plot: RunPlot, *, width: int = 880) -> str:
    """Both panels, one above the other."""
    across = width - _LEFT - _RIGHT
    upper = Box(_LEFT, _TOP, across, _PANEL)
    lower = Box(_LEFT, _TOP + _PANEL + _BETWEEN, across, _PANEL)
    groups = _groups(len(plot.steps))
    at = [plot.steps[low] for low, _ in groups]
    losses = [math.fsum(plot.losses[low:high]) / (high - low) for low, high in groups]
    seconds = [max(plot.seconds[low:high]) for low, high in groups]
    body = [svg.text(24, 32, plot.title, size=17, weight="bold")]
    body += [svg.text(_LEFT, upper.y - 10, "loss", fill=svg.MUTED)]
    body += _losses(upper, plot, list(zip(at, losses, strict=True)))
    words = "seconds per step" + (", the longest of each part" if len(at) < len(plot.steps) else "")
    body += [svg.text(_LEFT, lower.y - 10, words, fill=svg.MUTED)]
    body += _seconds(lower, plot, list(zip(at, seconds, strict=True)))
    for begin in plot.begun:
        x = upper.at(_steps(plot).share(begin), 0)[0]
        body.append(svg.line(x, upper.y, x, lower.foot, stroke=svg.MUTED, dash=_BEGAN))
    foot = lower.foot + 40
    body.append(svg.text(lower.middle, foot, "step", anchor="middle", size=13))
    return svg.document(width, lower.foot + _FOOT, title=plot.title, body=body)


def _groups(count: int) -> list[tuple[int, int]]:
    """From where to where each part goes; a part is one step of a short run."""
    part = math.ceil(count / _MOST_POINTS)
    return [(start, min(start + part, count)) for start in range(0, count, part)]


def _steps(plot: RunPlot) -> LinearAxis:
    return LinearAxis(plot.steps[0], max(plot.steps[0] + 1, plot.steps[-1]))


def _panel(
    box: Box,
    plot: RunPlot,
    points: Sequence[tuple[float, float]],
    y: LogAxis | LinearAxis,
    up: Ticks,
) -> tuple[ChartFrame, list[str]]:
    """The grid of a panel and its line; one step is a dot."""
    first, last = plot.steps[0], plot.steps[-1]
    frame = ChartFrame(box, _steps(plot), y)
    steps = [round(first + (last - first) * i / (_TICKS - 1)) for i in range(_TICKS)]
    parts = frame.grid([(step, tick_label(step)) for step in steps], up, is_ruled=False)
    assert all(a[0] <= b[0] for a, b in pairwise(points)), "steps come in order"
    places, colour = [frame.at(*p) for p in points], svg.PALETTE[isinstance(y, LogAxis)]
    if len(places) == 1:
        return frame, [*parts, svg.circle(*places[0], 3, fill=colour, stroke=colour)]
    return frame, [*parts, svg.polyline(places, stroke=colour)]


def _losses(box: Box, plot: RunPlot, points: Sequence[tuple[float, float]]) -> list[str]:
    """Evenly spaced ticks from the smallest to the largest."""
    low, high = min(loss for _, loss in points), max(loss for _, loss in points)
    room = (high - low) or max(abs(high), 1e-9) / 10
    ticks = [low - room / 20 + room * 1.1 * i / (_TICKS - 1) for i in range(_TICKS)]
    y = LinearAxis(ticks[0], ticks[-1])
    return _panel(box, plot, points, y, [(tick, f"{tick:.4g}") for tick in ticks])[1]


def _seconds(box: Box, plot: RunPlot, points: Sequence[tuple[float, float]]) -> list[str]:
    planned = [plot.planned_s] if plot.planned_s else []
    drawn = [point for point in points if point[1] > 0]
    y = log_axis([*(s for _, s in drawn), *planned] or [1.0])
    frame, parts = _panel(box, plot, drawn, y, [(t, format_seconds(t)) for t in y.ticks])
    for value in planned:
        at = frame.at(plot.steps[0], value)[1]
        parts.append(svg.line(box.x, at, box.right, at, stroke=svg.INK, dash="2 3"))
        words = f"planned {format_seconds(value)}"
        parts.append(svg.text(box.right, at - 5, words, anchor="end"))
    return parts

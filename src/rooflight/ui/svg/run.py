"""A training run step by step: its loss, and the seconds of a step below it.

In: a `RunPlot`. Out: SVG with two panels over one axis of steps. A long run keeps the mean of each
part of its loss and the longest step of it, so that a slow step is seen; restarts are dashed.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from rooflight.ui.svg import marks as svg
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
    body += _line(upper, plot, at, losses, _linear(losses), svg.PALETTE[0])
    words = "seconds per step" + (", the longest of each part" if len(at) < len(plot.steps) else "")
    body += [svg.text(_LEFT, lower.y - 10, words, fill=svg.MUTED)]
    body += _seconds(lower, plot, at, seconds)
    for begin in plot.begun:
        x = _x(upper, plot, begin)
        body.append(svg.line(x, upper.y, x, lower.foot, stroke=svg.MUTED, dash=_BEGAN))
    foot = lower.foot + 40
    body.append(svg.text(lower.middle, foot, "step", anchor="middle", size=13))
    return svg.document(width, lower.foot + _FOOT, title=plot.title, body=body)


def _groups(count: int) -> list[tuple[int, int]]:
    """From where to where each part goes; a part is one step of a short run."""
    part = math.ceil(count / _MOST_POINTS)
    return [(start, min(start + part, count)) for start in range(0, count, part)]


def _x(box: Box, plot: RunPlot, step: int) -> float:
    first, last = plot.steps[0], plot.steps[-1]
    return box.at((step - first) / max(1, last - first), 0)[0]


def _linear(values: Sequence[float]) -> list[tuple[float, str]]:
    """Evenly spaced ticks from the smallest to the largest."""
    low, high = min(values), max(values)
    room = (high - low) or max(abs(high), 1e-9) / 10
    ticks = [low - room / 20 + room * 1.1 * i / (_TICKS - 1) for i in range(_TICKS)]
    return [(tick, f"{tick:.4g}") for tick in ticks]


def _line(
    box: Box,
    plot: RunPlot,
    steps: Sequence[int],
    values: Sequence[float],
    ticks: Sequence[tuple[float, str]],
    colour: str,
) -> list[str]:
    low, high = ticks[0][0], ticks[-1][0]

    def height(value: float) -> float:
        return box.at(0, (value - low) / (high - low))[1]

    parts = _grid(box, [(height(tick), label) for tick, label in ticks], plot)
    points = [(_x(box, plot, s), height(v)) for s, v in zip(steps, values, strict=True)]
    return [*parts, *_stroke(points, colour)]


def _seconds(box: Box, plot: RunPlot, steps: Sequence[int], seconds: Sequence[float]) -> list[str]:
    planned = [plot.planned_s] if plot.planned_s else []
    shown = [math.log10(s) for s in (*seconds, *planned) if s > 0] or [0.0]
    axis = LogAxis(min(shown) - 0.1, max(shown) + 0.1)

    def height(value: float) -> float:
        return box.at(0, axis.share(value))[1]

    parts = _grid(box, [(height(t), format_seconds(t)) for t in axis.ticks], plot)
    drawn = [(s, v) for s, v in zip(steps, seconds, strict=True) if v > 0]
    parts += _stroke([(_x(box, plot, s), height(v)) for s, v in drawn], svg.PALETTE[1])
    for value in planned:
        y = height(value)
        parts.append(svg.line(box.x, y, box.right, y, stroke=svg.INK, dash="2 3"))
        words = f"planned {format_seconds(value)}"
        parts.append(svg.text(box.right, y - 5, words, anchor="end"))
    return parts


def _stroke(points: Sequence[tuple[float, float]], colour: str) -> list[str]:
    if len(points) == 1:
        return [svg.circle(*points[0], 3, fill=colour, stroke=colour)]
    ordered = all(a[0] <= b[0] for a, b in pairwise(points))
    assert ordered, "steps come in order"
    return [svg.polyline(points, stroke=colour)]


def _grid(box: Box, ticks: Sequence[tuple[float, str]], plot: RunPlot) -> list[str]:
    parts: list[str] = []
    for y, label in ticks:
        parts.append(svg.line(box.x, y, box.right, y, stroke=svg.GRID))
        parts.append(svg.text(box.x - 8, y + 4, label, fill=svg.MUTED, anchor="end"))
    first, last = plot.steps[0], plot.steps[-1]
    for i in range(_TICKS):
        step = round(first + (last - first) * i / (_TICKS - 1))
        x = _x(box, plot, step)
        parts.append(svg.text(x, box.foot + 18, tick_label(step), fill=svg.MUTED, anchor="middle"))
    return [*parts, svg.line(box.x, box.foot, box.right, box.foot, stroke=svg.MUTED)]

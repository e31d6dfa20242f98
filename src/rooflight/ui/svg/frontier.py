"""Throughput against latency, and what a step is made of, as a picture.

In: lines of (seconds, tokens per second and chip), and the parts of one of them by batch. Out: SVG
with two panels, all axes logarithmic; every line carries its name at its end.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rooflight.ui.svg import marks as svg
from rooflight.ui.svg.marks import LogAxis, tick_label
from rooflight.ui.text.labels import Box, spread
from rooflight.units import format_seconds

_LEFT, _TOP, _PANEL, _BETWEEN, _FOOT = 72.0, 64.0, 300.0, 100.0, 60.0
_SIZE = 12


@dataclass(frozen=True, slots=True)
class FrontierLine:
    """One way to serve: seconds of a step, tokens per second and chip."""

    label: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class StepBreakdown:
    """What the steps of one way to serve are spent on: by name, (batch, seconds)."""

    label: str
    lines: tuple[tuple[str, tuple[tuple[float, float], ...]], ...]


def frontier_svg(
    title: str, lines: Sequence[FrontierLine], parts: StepBreakdown, *, width: int = 900
) -> str:
    """Both panels, one above the other."""
    upper = [(line.label, line.points) for line in lines]
    lower = [(name, tuple(p for p in points if p[1] > 0)) for name, points in parts.lines]
    names = max(svg.text_width(label, _SIZE) for label, _ in (*upper, *lower)) + 40
    inner = max(width - _LEFT - names, 260.0)
    first = Box(_LEFT, _TOP, inner, _PANEL)
    second = Box(_LEFT, _TOP + _PANEL + _BETWEEN, inner, _PANEL)
    body = [
        svg.text(24, 32, title, size=17, weight="bold"),
        *_panel(
            first, upper, across="seconds per token", up="tokens/s per chip", is_time=(True, False)
        ),
        svg.text(24, second.y - 30, parts.label, size=13, weight="bold"),
        *_panel(second, lower, across="batch", up="seconds", is_time=(False, True)),
    ]
    height = second.y + _PANEL + _FOOT
    return svg.document(_LEFT + inner + names, height, title=title, body=body)


def parts_svg(title: str, parts: StepBreakdown, *, across: str, width: int = 900) -> str:
    """What a step is spent on, against anything: its batch, or its context."""
    lines = [(name, tuple(p for p in points if p[1] > 0)) for name, points in parts.lines]
    lines = [(name, points) for name, points in lines if points]
    names = max(svg.text_width(name, _SIZE) for name, _ in lines) + 40
    box = Box(_LEFT, _TOP + 24, width - _LEFT - names, _PANEL)
    body = [
        svg.text(24, 32, title, size=17, weight="bold"),
        svg.text(24, 54, parts.label, fill=svg.MUTED),
        *_panel(box, lines, across=across, up="seconds", is_time=(False, True)),
    ]
    return svg.document(width, box.foot + _FOOT, title=title, body=body)


_Lines = Sequence[tuple[str, tuple[tuple[float, float], ...]]]


def _panel(
    box: Box, lines: _Lines, *, across: str, up: str, is_time: tuple[bool, bool]
) -> list[str]:
    x, y = (_axis([p[i] for _, points in lines for p in points]) for i in (0, 1))

    def at(point: tuple[float, float]) -> tuple[float, float]:
        return box.at(x.share(point[0]), y.share(point[1]))

    parts = _grid(box, x, y, is_time)
    parts.append(svg.text(box.middle, box.foot + 42, across, anchor="middle", size=13))
    parts.append(svg.text(box.x, box.y - 8, up, fill=svg.MUTED))
    ends = [at(points[-1]) for _, points in lines]
    heights = spread([y for _, y in ends], low=box.y, high=box.foot)
    colours = svg.PALETTE * len(lines)
    for (label, points), colour, end, height in zip(lines, colours, ends, heights, strict=False):
        places = [at(p) for p in points]
        parts.append(svg.polyline(places, stroke=colour, width=2.5))
        parts += [svg.circle(px, py, 3, fill=colour, stroke=colour) for px, py in places]
        parts.append(svg.line(*end, box.right + 14, height, stroke=colour))
        parts.append(svg.text(box.right + 20, height + 4, label, size=_SIZE))
    return parts


def _axis(values: Sequence[float]) -> LogAxis:
    logs = [math.log10(v) for v in values]
    return LogAxis(min(logs) - 0.1, max(logs) + 0.1)


def _grid(box: Box, x: LogAxis, y: LogAxis, is_time: tuple[bool, bool]) -> list[str]:
    foot, right = box.foot, box.right
    parts: list[str] = []
    for tick in x.ticks:
        px = box.at(x.share(tick), 0)[0]
        label = format_seconds(tick) if is_time[0] else tick_label(tick)
        parts.append(svg.line(px, box.y, px, foot, stroke=svg.GRID))
        parts.append(svg.text(px, foot + 18, label, fill=svg.MUTED, anchor="middle"))
    for tick in y.ticks:
        py = box.at(0, y.share(tick))[1]
        label = format_seconds(tick) if is_time[1] else tick_label(tick)
        parts.append(svg.line(box.x, py, right, py, stroke=svg.GRID))
        parts.append(svg.text(box.x - 8, py + 4, label, fill=svg.MUTED, anchor="end"))
    return [*parts, svg.line(box.x, foot, right, foot, stroke=svg.MUTED)]

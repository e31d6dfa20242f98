"""Throughput against latency, and what a step is made of, as a picture.

In: lines of (seconds, tokens per second and chip), and the parts of one of them by batch. Out: SVG
with two panels, all axes logarithmic; every line carries its name at its end.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rooflight.ui.svg import marks as svg
from rooflight.ui.svg.frame import ChartFrame, log_axis, name_room
from rooflight.ui.svg.marks import tick_label
from rooflight.ui.text.labels import Box
from rooflight.units import format_seconds

_LEFT, _TOP, _PANEL, _BETWEEN, _FOOT = 72.0, 64.0, 300.0, 100.0, 60.0


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
    names = name_room(label for label, _ in (*upper, *lower))
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
    names = name_room(name for name, _ in lines)
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
    x, y = (log_axis(p[i] for _, points in lines for p in points) for i in (0, 1))
    frame = ChartFrame(box, x, y)
    shown = [format_seconds if is_seconds else tick_label for is_seconds in is_time]
    ticks = [[(t, show(t)) for t in axis.ticks] for axis, show in zip((x, y), shown, strict=True)]
    parts = [*frame.grid(*ticks, title=across), svg.text(box.x, box.y - 8, up, fill=svg.MUTED)]
    colours = svg.PALETTE * len(lines)
    for (_, points), colour in zip(lines, colours, strict=False):
        places = [frame.at(*p) for p in points]
        parts.append(svg.polyline(places, stroke=colour, width=2.5))
        parts += [svg.circle(px, py, 3, fill=colour, stroke=colour) for px, py in places]
    ends = [frame.at(*points[-1]) for _, points in lines]
    return [*parts, *frame.names([label for label, _ in lines], ends, colours)]

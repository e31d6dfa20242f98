"""Bytes in memory along a schedule as a picture: a step line over the instructions, the limit.

In: `LiveBytes` of a compiled step. Out: SVG. Between two marks of the curve lies one instruction.
"""

import math
from itertools import pairwise

from rooflight.compile.hlo.memory import LiveBytes
from rooflight.ui.svg import marks as svg
from rooflight.units import format_si

_LEFT, _TOP, _BOTTOM, _RIGHT = 84.0, 64.0, 56.0, 24.0
_TICKS = 5
_MOST_POINTS = 1200  # a longer schedule keeps the largest of each part


def live_svg(
    title: str, live: LiveBytes, limit_bytes: int | None, *, width: int = 880, height: int = 380
) -> str:
    """The curve, its peak by name, the limit where it is near."""
    peak = live.peak
    limit = limit_bytes if limit_bytes and limit_bytes < 2 * peak else None
    top = 1.1 * max(peak, limit or 0, 1)
    across, up = width - _LEFT - _RIGHT, height - _TOP - _BOTTOM
    foot = _TOP + up

    def y(value: float) -> float:
        return foot - value / top * up

    body = [svg.text(24, 32, title, size=17, weight="bold")]
    for tick in _ticks(top):
        body.append(svg.line(_LEFT, y(tick), width - _RIGHT, y(tick), stroke=svg.GRID))
        label = format_si(tick, "B") if tick else "0"
        body.append(svg.text(_LEFT - 8, y(tick) + 4, label, fill=svg.MUTED, anchor="end"))
    scale = across / len(live.nbytes)
    points = [(_LEFT + at * scale, y(value)) for at, value in _thinned(live.nbytes)]
    stairs = [p for (x0, y0), (x1, _) in pairwise(points) for p in ((x0, y0), (x1, y0))]
    body.append(svg.polyline([*stairs, points[-1]], stroke=svg.PALETTE[0]))
    if limit:
        edge = width - _RIGHT
        body.append(svg.line(_LEFT, y(limit), edge, y(limit), stroke=svg.PALETTE[1], dash="6 4"))
        words = f"a program may use {format_si(limit, 'B')}"
        body.append(svg.text(edge, y(limit) - 6, words, fill=svg.PALETTE[1], anchor="end"))
    body += _peak(live, _LEFT + (live.peak_at + 0.5) * scale, y(peak), width)
    middle = _LEFT + across / 2
    words = f"{len(live.nbytes):,} instructions in the order of the schedule"
    body.append(svg.text(middle, foot + 34, words, anchor="middle", size=13))
    body.append(svg.line(_LEFT, foot, width - _RIGHT, foot, stroke=svg.MUTED))
    return svg.document(width, height, title=title, body=body)


def _peak(live: LiveBytes, x: float, y: float, width: int) -> list[str]:
    words = f"peak {format_si(live.peak, 'B')} at {live.names[live.peak_at]}"
    room = svg.text_width(words, 12) / 2
    centre = min(max(x, _LEFT + room), width - _RIGHT - room)
    dot = svg.circle(x, y, 4, fill=svg.PALETTE[0], stroke=svg.PALETTE[0])
    return [dot, svg.text(centre, y - 10, words, anchor="middle")]


def _thinned(values: tuple[int, ...]) -> list[tuple[int, int]]:
    """At most so many points: of each part of a longer curve its largest, so peaks stay."""
    part = math.ceil(len(values) / _MOST_POINTS)
    starts = range(0, len(values), part)
    points = [(at, max(values[at : at + part])) for at in starts]
    return [*points, (len(values), values[-1])]


def _ticks(top: float) -> list[float]:
    """Round values from nothing to the top.

    >>> _ticks(11e9)
    [0.0, 2000000000.0, 4000000000.0, 6000000000.0, 8000000000.0, 10000000000.0]
    """
    least = top / (_TICKS + 1)
    power = 10.0 ** math.floor(math.log10(least))
    step = next(f * power for f in (1.0, 2.0, 5.0, 10.0) if f * power >= least)
    return [i * step for i in range(math.floor(top / step) + 1)]

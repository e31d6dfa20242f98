"""Throughput and efficiency against chips as a picture: where a curve bends, and what binds there.

In: `Mark`s, fewest chips first. Out: SVG with two panels over one logarithmic axis of chips: tokens
per second beside the line of perfect scaling, and the efficiency below it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rooflight.ui.svg import marks as svg
from rooflight.ui.svg.frame import ChartFrame, LinearAxis, Ticks, log_axis
from rooflight.ui.svg.marks import tick_label
from rooflight.ui.text.labels import Box
from rooflight.units import format_count

_LEFT, _RIGHT = 72.0, 32.0
_TOP, _UPPER, _BETWEEN, _LOWER = 68.0, 250.0, 44.0, 110.0
_FOOT = 78.0
_COLOUR, _BEND = svg.PALETTE[0], svg.PALETTE[1]


@dataclass(frozen=True, slots=True)
class Mark:
    """One slice of a scaling curve."""

    num_chips: int
    tokens_per_s: float
    efficiency: float
    label: str
    because: str  # what costs most there


def scaling_svg(
    marks: Sequence[Mark],
    *,
    title: str,
    bend: Mark | None = None,
    threshold: float = 0.9,
    width: int = 800,
) -> str:
    """The two panels; the bend, if there is one, is marked and named in both."""
    height = _TOP + _UPPER + _BETWEEN + _LOWER + _FOOT
    inner = width - _LEFT - _RIGHT
    best = max(m.tokens_per_s / m.num_chips for m in marks)
    x = log_axis((m.num_chips for m in marks), 0.12, 0.12)
    y = log_axis([r for m in marks for r in (best * m.num_chips, m.tokens_per_s)], 0.15, 0.2)
    upper = ChartFrame(Box(_LEFT, _TOP, inner, _UPPER), x, y)
    lower = ChartFrame(Box(_LEFT, _TOP + _UPPER + _BETWEEN, inner, _LOWER), x, LinearAxis(0, 1))
    body = [
        svg.text(24, 32, title, size=17, weight="bold"),
        *_throughput(upper, marks, bend, [(tick, tick_label(tick)) for tick in y.ticks]),
        *_efficiencies(lower, marks, bend, threshold),
        *_slices(lower, marks),
    ]
    return svg.document(width, height, title=title, body=body)


def _curve(
    frame: ChartFrame, marks: Sequence[Mark], values: Sequence[float], bend: Mark | None
) -> list[str]:
    """A line through all marks, a dot on each; the bend in another colour."""
    places = [frame.at(m.num_chips, value) for m, value in zip(marks, values, strict=True)]
    parts = [svg.polyline(places, stroke=_COLOUR, width=2.5)]
    for mark, place in zip(marks, places, strict=True):
        colour = _BEND if mark is bend else _COLOUR
        parts.append(svg.circle(*place, 6 if mark is bend else 4, fill=colour, stroke=colour))
    return parts


def _throughput(
    frame: ChartFrame, marks: Sequence[Mark], bend: Mark | None, up: Ticks
) -> list[str]:
    """Tokens per second, and what all chips would do if each did as well as the best."""
    best = max(m.tokens_per_s / m.num_chips for m in marks)
    ends = [frame.at(marks[i].num_chips, best * marks[i].num_chips) for i in (0, -1)]
    legend = "tokens per second; dashed: every chip as fast as the best"
    return [
        *frame.grid((), up),
        svg.line(*ends[0], *ends[1], stroke=svg.MUTED, width=1.5, dash="5 4"),
        *_curve(frame, marks, [m.tokens_per_s for m in marks], bend),
        svg.text(_LEFT, frame.box.y - 12, legend, size=13),
        *(_named(frame, bend) if bend else ()),
    ]


def _named(frame: ChartFrame, bend: Mark) -> list[str]:
    """The words of the bend well below its dot, where a rising curve leaves room."""
    x, y = frame.at(bend.num_chips, bend.tokens_per_s)
    words = f"bends: {bend.because}"
    end = min(x + 0.75 * svg.text_width(words, 13), frame.box.right)
    below = min(y + 84, frame.box.foot - 10)
    return [
        svg.line(x, y, x, below - 15, stroke=_BEND),
        svg.text(end, below, words, size=13, fill=_BEND, anchor="end", weight="bold"),
    ]


def _efficiencies(
    frame: ChartFrame, marks: Sequence[Mark], bend: Mark | None, threshold: float
) -> list[str]:
    box, y = frame.box, frame.at(marks[0].num_chips, threshold)[1]
    return [
        *frame.grid((), [(up, f"{up:.0%}") for up in (0.0, 0.5, 1.0)]),
        svg.line(box.x, y, box.right, y, stroke=_BEND, dash="3 3"),
        *_curve(frame, marks, [m.efficiency for m in marks], bend),
        svg.text(_LEFT, box.y - 12, f"efficiency; dotted: {threshold:.0%}", size=13),
    ]


def _slices(frame: ChartFrame, marks: Sequence[Mark]) -> list[str]:
    """Chips below each mark, and the name of its slice where there is room."""
    parts: list[str] = []
    free, foot = 0.0, frame.box.foot
    for mark in marks:
        x = frame.at(mark.num_chips, 0)[0]
        count, half = format_count(mark.num_chips), svg.text_width(mark.label, 11) / 2
        parts.append(svg.text(x, foot + 18, count, anchor="middle"))
        if x - half >= free:
            name = svg.text(x, foot + 34, mark.label, anchor="middle", size=11, fill=svg.MUTED)
            parts.append(name)
            free = x + half + 6
    return [*parts, svg.text(frame.box.middle, foot + 58, "chips", anchor="middle", size=13)]

"""Throughput and efficiency against chips as a picture: where a curve bends, and what binds there.

In: `Mark`s, fewest chips first. Out: SVG with two panels over one logarithmic axis of chips: tokens
per second beside the line of perfect scaling, and the efficiency below it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rooflight.ui.svg import marks as svg
from rooflight.ui.svg.marks import LogAxis, tick_label
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
    upper = _ScalingPanel(Box(_LEFT, _TOP, inner, _UPPER), _chips(marks))
    lower = _ScalingPanel(Box(_LEFT, _TOP + _UPPER + _BETWEEN, inner, _LOWER), _chips(marks))
    body = [
        svg.text(24, 32, title, size=17, weight="bold"),
        *_throughput(upper, marks, bend),
        *_efficiencies(lower, marks, bend, threshold),
        *_slices(lower, marks),
    ]
    return svg.document(width, height, title=title, body=body)


def _chips(marks: Sequence[Mark]) -> LogAxis:
    ends = [math.log10(m.num_chips) for m in marks]
    return LogAxis(min(ends) - 0.12, max(ends) + 0.12)


@dataclass(frozen=True, slots=True)
class _ScalingPanel:
    """A framed area over the axis of chips; heights are parts of it, 1 at the top."""

    frame: Box
    x: LogAxis

    def at(self, num_chips: float, up: float) -> tuple[float, float]:
        return self.frame.at(self.x.share(num_chips), up)

    def rule(self, up: float, label: str) -> list[str]:
        """A grid line with its label."""
        y = self.frame.at(0, up)[1]
        line = svg.line(self.frame.x, y, self.frame.right, y, stroke=svg.GRID)
        return [line, svg.text(_LEFT - 8, y + 4, label, fill=svg.MUTED, anchor="end")]

    def curve(self, marks: Sequence[Mark], ups: Sequence[float], bend: Mark | None) -> list[str]:
        """A line through all marks, a dot on each; the bend in another colour."""
        places = [self.at(m.num_chips, up) for m, up in zip(marks, ups, strict=True)]
        parts = [svg.polyline(places, stroke=_COLOUR, width=2.5)]
        for mark, place in zip(marks, places, strict=True):
            colour = _BEND if mark is bend else _COLOUR
            parts.append(svg.circle(*place, 6 if mark is bend else 4, fill=colour, stroke=colour))
        return parts

    def base(self) -> str:
        return svg.line(
            self.frame.x, self.frame.foot, self.frame.right, self.frame.foot, stroke=svg.MUTED
        )


def _throughput(panel: _ScalingPanel, marks: Sequence[Mark], bend: Mark | None) -> list[str]:
    """Tokens per second, and what all chips would do if each did as well as the best."""
    best = max(m.tokens_per_s / m.num_chips for m in marks)
    ideal = [best * m.num_chips for m in marks]
    values = [math.log10(v) for v in (*ideal, *(m.tokens_per_s for m in marks))]
    y = LogAxis(min(values) - 0.15, max(values) + 0.2)
    parts = [part for tick in y.ticks for part in panel.rule(y.share(tick), tick_label(tick))]
    ends = [panel.at(marks[i].num_chips, y.share(ideal[i])) for i in (0, -1)]
    parts.append(svg.line(*ends[0], *ends[1], stroke=svg.MUTED, width=1.5, dash="5 4"))
    parts += panel.curve(marks, [y.share(m.tokens_per_s) for m in marks], bend)
    legend = "tokens per second; dashed: every chip as fast as the best"
    parts.append(svg.text(_LEFT, panel.frame.y - 12, legend, size=13))
    if bend:
        parts += _named(panel, bend, y.share(bend.tokens_per_s))
    return [*parts, panel.base()]


def _named(panel: _ScalingPanel, bend: Mark, up: float) -> list[str]:
    """The words of the bend well below its dot, where a rising curve leaves room."""
    x, y = panel.at(bend.num_chips, up)
    words = f"bends: {bend.because}"
    end = min(x + 0.75 * svg.text_width(words, 13), panel.frame.right)
    below = min(y + 84, panel.frame.foot - 10)
    return [
        svg.line(x, y, x, below - 15, stroke=_BEND),
        svg.text(end, below, words, size=13, fill=_BEND, anchor="end", weight="bold"),
    ]


def _efficiencies(
    panel: _ScalingPanel, marks: Sequence[Mark], bend: Mark | None, threshold: float
) -> list[str]:
    parts = [part for up in (0.0, 0.5, 1.0) for part in panel.rule(up, f"{up:.0%}")]
    y = panel.frame.at(0, threshold)[1]
    parts.append(svg.line(panel.frame.x, y, panel.frame.right, y, stroke=_BEND, dash="3 3"))
    parts += panel.curve(marks, [m.efficiency for m in marks], bend)
    legend = f"efficiency; dotted: {threshold:.0%}"
    parts.append(svg.text(_LEFT, panel.frame.y - 12, legend, size=13))
    return [*parts, panel.base()]


def _slices(panel: _ScalingPanel, marks: Sequence[Mark]) -> list[str]:
    """Chips below each mark, and the name of its slice where there is room."""
    parts: list[str] = []
    free = 0.0
    for mark in marks:
        x, _ = panel.at(mark.num_chips, 0)
        parts.append(
            svg.text(
                x, panel.frame.foot + 18, format_count(mark.num_chips), anchor="middle", size=12
            )
        )
        half = svg.text_width(mark.label, 11) / 2
        if x - half >= free:
            label = svg.text(
                x, panel.frame.foot + 34, mark.label, anchor="middle", size=11, fill=svg.MUTED
            )
            parts.append(label)
            free = x + half + 6
    return [
        *parts,
        svg.text(panel.frame.middle, panel.frame.foot + 58, "chips", anchor="middle", size=13),
    ]

"""`ChartFrame`: the framed part of a chart: two axes, the grid behind, names beside its lines.

In: a box, axes, ticks with their words. Out: places of values, and markup.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rooflight.ui.svg import marks as svg
from rooflight.ui.svg.marks import LogAxis
from rooflight.ui.text.labels import Box, spread

Ticks = Iterable[tuple[float, str]]
_NAME_SIZE = 12


@dataclass(frozen=True, slots=True)
class LinearAxis:
    """From `low` to `high`, which are two values."""

    low: float
    high: float

    def share(self, value: float) -> float:
        """0 at the low end, 1 at the high end."""
        return (value - self.low) / (self.high - self.low)


def log_axis(values: Iterable[float], below: float = 0.1, above: float = 0.1) -> LogAxis:
    """An axis of all values, with so many decades of room at its ends.

    >>> log_axis([10, 1000], below=0.5, above=0)
    LogAxis(low=0.5, high=3.0)
    """
    shown = [math.log10(value) for value in values]
    return LogAxis(min(shown) - below, max(shown) + above)


@dataclass(frozen=True, slots=True)
class ChartFrame:
    """Where a pair of values is in a picture, and what stands around all of them."""

    box: Box
    x: LogAxis | LinearAxis
    y: LogAxis | LinearAxis

    def at(self, x: float, y: float) -> tuple[float, float]:
        return self.box.at(self.x.share(x), self.y.share(y))

    def grid(
        self, across: Ticks, up: Ticks, *, title: str = "", is_ruled: bool = True
    ) -> list[str]:
        """Words below and at the left, a line for each, and the title of the axis across."""
        box, parts = self.box, list[str]()
        for value, words in across:
            x = box.at(self.x.share(value), 0)[0]
            parts += [svg.line(x, box.y, x, box.foot, stroke=svg.GRID)] if is_ruled else []
            parts.append(svg.text(x, box.foot + 18, words, fill=svg.MUTED, anchor="middle"))
        for value, words in up:
            parts += self.level(value, words)
        parts.append(svg.line(box.x, box.foot, box.right, box.foot, stroke=svg.MUTED))
        named = svg.text(box.middle, box.foot + 42, title, anchor="middle", size=13)
        return [*parts, named] if title else parts

    def level(self, value: float, words: str) -> list[str]:
        """A line at one height, with its words at the left."""
        y = self.box.at(0, self.y.share(value))[1]
        line = svg.line(self.box.x, y, self.box.right, y, stroke=svg.GRID)
        return [line, svg.text(self.box.x - 8, y + 4, words, fill=svg.MUTED, anchor="end")]

    def names(
        self,
        labels: Sequence[str],
        ends: Sequence[tuple[float, float]],
        colours: Sequence[str],
        is_bold: Sequence[bool] = (),
    ) -> list[str]:
        """Each name beside the right end of its line, moved where two would meet."""
        heights = spread([y for _, y in ends], low=self.box.y, high=self.box.foot)
        parts: list[str] = []
        for i, (label, end, height) in enumerate(zip(labels, ends, heights, strict=True)):
            weight = "bold" if is_bold and is_bold[i] else "normal"
            parts.append(svg.line(*end, self.box.right + 14, height, stroke=colours[i]))
            parts.append(svg.text(self.box.right + 20, height + 4, label, weight=weight))
        return parts


def name_room(labels: Iterable[str]) -> float:
    """Pixels that the names of lines take at the right."""
    return max(svg.text_width(label, _NAME_SIZE) for label in labels) + 40

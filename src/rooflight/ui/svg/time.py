"""Seconds against tokens per step as a picture, both axes logarithmic: one line for each scheme.

In: a `TimePlot`. Out: SVG. Every line carries its name at its right end, so colour is not needed
to tell lines apart.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rooflight.ui.svg import marks as svg
from rooflight.ui.svg.marks import LogAxis, tick_label
from rooflight.ui.text.labels import Box, spread
from rooflight.units import format_seconds

Look = Literal["matmuls", "scheme", "chosen"]
_LABEL_SIZE = 12
_LEFT, _TOP, _BOTTOM = 72.0, 64.0, 56.0
_WIDTHS: dict[Look, float] = {"matmuls": 3.5, "scheme": 2.0, "chosen": 3.5}


@dataclass(frozen=True, slots=True)
class TimeLine:
    """What a step spends on one thing, by its tokens; no points where nothing divides."""

    label: str
    points: tuple[tuple[int, float], ...]  # tokens, seconds
    look: Look = "scheme"

    @property
    def drawn(self) -> tuple[tuple[int, float], ...]:
        """What a logarithmic axis can show: one chip has no collectives."""
        return tuple((tokens, seconds) for tokens, seconds in self.points if seconds > 0)


@dataclass(frozen=True, slots=True)
class TimePlot:
    """Lines over one axis of tokens, and the batch that was asked about."""

    title: str
    lines: tuple[TimeLine, ...]
    asked: int

    @property
    def drawn(self) -> list[TimeLine]:
        return [line for line in self.lines if line.drawn]


def time_svg(plot: TimePlot, *, width: int = 880, height: int = 470) -> str:
    """The picture: ticks, a line a scheme with its name, the asked batch."""
    names = max(svg.text_width(line.label, _LABEL_SIZE) for line in plot.drawn) + 40
    frame = Box(_LEFT, _TOP, width - _LEFT - names, height - _TOP - _BOTTOM)
    area = _Area(frame, *_axes(plot))
    free = iter(svg.PALETTE * len(plot.drawn))
    colours = [svg.INK if line.look == "matmuls" else next(free) for line in plot.drawn]
    body = [svg.text(24, 32, plot.title, size=17, weight="bold"), *area.grid()]
    body += area.asked(plot.asked)
    for line, colour in zip(plot.drawn, colours, strict=True):
        body += area.line(line, colour, plot.asked)
    body += area.names(plot.drawn, colours)
    return svg.document(width, height, title=plot.title, body=body)


def _axes(plot: TimePlot) -> tuple[LogAxis, LogAxis]:
    points = [point for line in plot.drawn for point in line.drawn]
    across = [math.log10(tokens) for tokens, _ in points]
    up = [math.log10(seconds) for _, seconds in points]
    return LogAxis(min(across) - 0.1, max(across)), LogAxis(min(up) - 0.15, max(up) + 0.1)


@dataclass(frozen=True, slots=True)
class _Area:
    """The framed part of the picture and its two axes."""

    frame: Box
    x: LogAxis
    y: LogAxis

    def at(self, tokens: float, seconds: float) -> tuple[float, float]:
        return self.frame.at(self.x.share(tokens), self.y.share(seconds))

    def grid(self) -> list[str]:
        parts: list[str] = []
        for tick in self.x.ticks:
            px, _ = self.at(tick, self.y.value(0))
            parts.append(svg.line(px, self.frame.y, px, self.frame.foot, stroke=svg.GRID))
            label = tick_label(tick)
            parts.append(svg.text(px, self.frame.foot + 18, label, fill=svg.MUTED, anchor="middle"))
        for tick in self.y.ticks:
            _, py = self.at(self.x.value(0), tick)
            parts.append(svg.line(self.frame.x, py, self.frame.right, py, stroke=svg.GRID))
            label = format_seconds(tick)
            parts.append(svg.text(_LEFT - 8, py + 4, label, fill=svg.MUTED, anchor="end"))
        parts.append(
            svg.text(
                self.frame.middle, self.frame.foot + 42, "tokens per step", anchor="middle", size=13
            )
        )
        return [
            *parts,
            svg.line(
                self.frame.x, self.frame.foot, self.frame.right, self.frame.foot, stroke=svg.MUTED
            ),
        ]

    def asked(self, tokens: int) -> list[str]:
        px, _ = self.at(tokens, self.y.value(0))
        label = f"asked: {tokens:,} tokens"
        rule = svg.line(
            px, self.frame.y, px, self.frame.foot, stroke=svg.MUTED, width=1.5, dash="5 4"
        )
        return [rule, svg.text(px, self.frame.y - 6, label, fill=svg.MUTED, anchor="middle")]

    def line(self, line: TimeLine, colour: str, asked: int) -> list[str]:
        """A line, with a dot where it was asked, or where it has one point only."""
        places = [self.at(*point) for point in line.drawn]
        parts = [svg.polyline(places, stroke=colour, width=_WIDTHS[line.look])]
        dots = [p for p in line.drawn if p[0] == asked or len(line.drawn) == 1]
        return [*parts, *(svg.circle(*self.at(*p), 4, fill=colour, stroke=colour) for p in dots)]

    def names(self, lines: Sequence[TimeLine], colours: Sequence[str]) -> list[str]:
        """Each name beside the right end of its line, moved where two would meet."""
        ends = [self.at(*line.drawn[-1]) for line in lines]
        heights = spread([y for _, y in ends], low=self.frame.y, high=self.frame.foot)
        parts: list[str] = []
        for line, colour, (x, y), height in zip(lines, colours, ends, heights, strict=True):
            parts.append(svg.line(x, y, self.frame.right + 14, height, stroke=colour))
            weight = "normal" if line.look == "scheme" else "bold"
            parts.append(svg.text(self.frame.right + 20, height + 4, line.label, weight=weight))
        return parts

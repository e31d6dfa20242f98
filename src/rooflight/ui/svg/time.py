"""Seconds against tokens per step as a picture, both axes logarithmic: one line for each scheme.

In: a `TimePlot`. Out: SVG. Every line carries its name at its right end, so colour is not needed
to tell lines apart.
"""

from dataclasses import dataclass
from typing import Literal

from rooflight.ui.svg import marks as svg
from rooflight.ui.svg.frame import ChartFrame, log_axis, name_room
from rooflight.ui.svg.marks import tick_label
from rooflight.ui.text.labels import Box
from rooflight.units import format_seconds

Look = Literal["matmuls", "scheme", "chosen"]
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
    lines = plot.drawn
    room = name_room(line.label for line in lines)
    points = [point for line in lines for point in line.drawn]
    x = log_axis((tokens for tokens, _ in points), above=0)
    y = log_axis((seconds for _, seconds in points), below=0.15)
    frame = ChartFrame(Box(_LEFT, _TOP, width - _LEFT - room, height - _TOP - _BOTTOM), x, y)
    free = iter(svg.PALETTE * len(lines))
    colours = [svg.INK if line.look == "matmuls" else next(free) for line in lines]
    across = [(tick, tick_label(tick)) for tick in x.ticks]
    up = [(tick, format_seconds(tick)) for tick in y.ticks]
    body = [svg.text(24, 32, plot.title, size=17, weight="bold")]
    body += frame.grid(across, up, title="tokens per step")
    body += _asked(frame, plot.asked)
    for line, colour in zip(lines, colours, strict=True):
        body += _line(frame, line, colour, plot.asked)
    body += frame.names(
        [line.label for line in lines],
        [frame.at(*line.drawn[-1]) for line in lines],
        colours,
        [line.look != "scheme" for line in lines],
    )
    return svg.document(width, height, title=plot.title, body=body)


def _asked(frame: ChartFrame, tokens: int) -> list[str]:
    box = frame.box
    x = box.at(frame.x.share(tokens), 0)[0]
    rule = svg.line(x, box.y, x, box.foot, stroke=svg.MUTED, width=1.5, dash="5 4")
    words = f"asked: {tokens:,} tokens"
    return [rule, svg.text(x, box.y - 6, words, fill=svg.MUTED, anchor="middle")]


def _line(frame: ChartFrame, line: TimeLine, colour: str, asked: int) -> list[str]:
    """A line, with a dot where it was asked, or where it has one point only."""
    stroke = svg.polyline(
        [frame.at(*p) for p in line.drawn], stroke=colour, width=_WIDTHS[line.look]
    )
    dots = [p for p in line.drawn if p[0] == asked or len(line.drawn) == 1]
    return [stroke, *(svg.circle(*frame.at(*p), 4, fill=colour, stroke=colour) for p in dots)]

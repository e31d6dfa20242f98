"""Latencies of a simulation as a picture: seconds, logarithmic, against the share of requests.

In: a `LatencyPlot`. Out: SVG. Each line carries its name at its right end.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from rooflight.ui.svg import marks as svg
from rooflight.ui.svg.frame import ChartFrame, LinearAxis, log_axis
from rooflight.ui.text.labels import Box
from rooflight.units import format_seconds

_LEFT, _TOP, _BOTTOM, _NAMES = 72.0, 64.0, 56.0, 190.0


@dataclass(frozen=True, slots=True)
class LatencyLine:
    """Seconds that 1 %, 2 % ... 99 % of requests stay within."""

    label: str
    seconds: Sequence[float]
    is_prediction: bool = False  # of the line before it: dashed, in the same colour

    @property
    def drawn(self) -> list[tuple[int, float]]:
        """What a logarithmic axis can show."""
        return [(at, s) for at, s in enumerate(self.seconds, start=1) if s > 0]


@dataclass(frozen=True, slots=True)
class LatencyPlot:
    """Lines, and what was promised."""

    title: str
    lines: Sequence[LatencyLine]
    slos: Sequence[tuple[str, float]]  # name, seconds

    @property
    def drawn(self) -> list[LatencyLine]:
        return [line for line in self.lines if line.drawn]


def latency_svg(plot: LatencyPlot, *, width: int = 880, height: int = 470) -> str:
    """The picture: a line for each latency, a dashed line for each promise."""
    seconds = [s for line in plot.drawn for _, s in line.drawn]
    y = log_axis([*seconds, *(s for _, s in plot.slos)] or [1.0])
    box = Box(_LEFT, _TOP, width - _LEFT - _NAMES, height - _TOP - _BOTTOM)
    frame = ChartFrame(box, LinearAxis(0, 100), y)
    across = [(percent, f"{percent} %") for percent in range(0, 101, 10)]
    up = [(tick, format_seconds(tick)) for tick in y.ticks]
    body = [svg.text(24, 32, plot.title, size=17, weight="bold")]
    body += frame.grid(across, up, title="share of requests")
    for name, slo_s in plot.slos:
        at = frame.at(0, slo_s)[1]
        body.append(svg.line(box.x, at, box.right, at, stroke=svg.MUTED, dash="5 4"))
        body.append(svg.text(box.x + 6, at - 5, name, fill=svg.MUTED))
    numbers = accumulate(not line.is_prediction for line in plot.drawn)
    colours = [svg.PALETTE[(number - 1) % len(svg.PALETTE)] for number in numbers]
    for line, colour in zip(plot.drawn, colours, strict=True):
        dash = "6 4" if line.is_prediction else ""
        places = [frame.at(*point) for point in line.drawn]
        body.append(svg.polyline(places, stroke=colour, dash=dash))
    ends = [frame.at(*line.drawn[-1]) for line in plot.drawn]
    body += frame.names([line.label for line in plot.drawn], ends, colours)
    return svg.document(width, height, title=plot.title, body=body)

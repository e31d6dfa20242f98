"""SVG elements as strings: the few shapes our pictures need, with every text escaped.

In: coordinates, colours, text. Out: markup. Fonts are the viewer's own sans-serif.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from rooflight.units import format_si

_FEW_DECADES = 3.0  # below, 2 and 5 have ticks too

INK = "#1f2933"
MUTED = "#66727f"
GRID = "#e3e7eb"
EMPTY = "#eef1f4"  # where nothing happens
PAPER = "#ffffff"
ON_BAR = "#16202a"  # words on a pale bar, which is pale on any ground
# Okabe and Ito: told apart by readers with any kind of colour vision.
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#56a3d9")
_FONT = "-apple-system, 'Segoe UI', 'DejaVu Sans', Helvetica, Arial, sans-serif"


def text_width(text: str, size: float) -> float:
    """A generous estimate in pixels: sans-serif letters average 0.6 of their size."""
    return 0.6 * size * len(text)


def document(width: float, height: float, *, title: str, body: Sequence[str]) -> str:
    """A whole SVG file on white, with `title` for screen readers."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}"'
        f' viewBox="0 0 {width:g} {height:g}" font-family="{_FONT}" role="img">'
    )
    lines = [head, f"<title>{escape(title)}</title>", rect(0, 0, width, height, fill=PAPER)]
    return "\n".join([*lines, *body, "</svg>", ""])


def text(
    x: float,
    y: float,
    content: str,
    *,
    size: float = 12,
    fill: str = INK,
    anchor: str = "start",
    weight: str = "normal",
    rotated: bool = False,
) -> str:
    """Text on its baseline; `rotated` reads upwards around its own point."""
    turn = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if rotated else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size:g}" fill="{fill}"'
        f' text-anchor="{anchor}" font-weight="{weight}"{turn}>{escape(content)}</text>'
    )


def line(
    x1: float, y1: float, x2: float, y2: float, *, stroke: str, width: float = 1, dash: str = ""
) -> str:
    """A straight stroke; `dash` as in `stroke-dasharray`."""
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
        f' stroke="{stroke}" stroke-width="{width:g}"{dashed}/>'
    )


def polyline(
    points: Sequence[tuple[float, float]], *, stroke: str, width: float = 2, dash: str = ""
) -> str:
    """Connected strokes."""
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    return (
        f'<polyline points="{path}" fill="none" stroke="{stroke}" stroke-width="{width:g}"'
        f' stroke-linejoin="round"{dashes}/>'
    )


def circle(x: float, y: float, radius: float, *, fill: str, stroke: str) -> str:
    """A dot with a rim."""
    return (
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}" fill="{fill}" stroke="{stroke}"'
        ' stroke-width="2"/>'
    )


def rect(
    x: float,
    y: float,
    width: float,
    height: float,
    *,
    fill: str,
    stroke: str = "none",
    tooltip: str = "",
) -> str:
    """A box; `tooltip` shows when a browser's pointer rests on it."""
    start = (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
        f' fill="{fill}" stroke="{stroke}"'
    )
    return f"{start}><title>{escape(tooltip)}</title></rect>" if tooltip else f"{start}/>"


@dataclass(frozen=True, slots=True)
class LogAxis:
    """From 10**low to 10**high."""

    low: float
    high: float

    def share(self, value: float) -> float:
        """0 at the low end, 1 at the high end."""
        return (math.log10(value) - self.low) / (self.high - self.low)

    def value(self, share: float) -> float:
        """The inverse of `share`."""
        return 10 ** (self.low + (self.high - self.low) * share)

    @property
    def decades(self) -> list[float]:
        """The powers of ten on the axis, its ends included."""
        return [10.0**e for e in range(math.ceil(self.low), math.floor(self.high) + 1)]

    @property
    def ticks(self) -> list[float]:
        """The decades; on a short axis also 2 and 5 times each."""
        if self.high - self.low >= _FEW_DECADES:
            return self.decades
        powers = range(math.floor(self.low), math.floor(self.high) + 1)
        every = (step * 10.0**e for e in powers for step in (1, 2, 5))
        return [tick for tick in every if -1e-9 <= self.share(tick) <= 1 + 1e-9]


def round_step(least: float) -> float:
    """The smallest of 1, 2, 5 times a power of ten that is not below `least`.

    >>> round_step(3.3), round_step(0.07)
    (5.0, 0.1)
    """
    power = 10.0 ** math.floor(math.log10(least))
    steps = (step * power for step in (1.0, 2.0, 5.0, 10.0))
    return next(step for step in steps if step >= least * (1 - 1e-9))


def tick_label(value: float) -> str:
    """A number with an SI prefix and no unit.

    >>> tick_label(2e6), tick_label(100)
    ('2M', '100')
    """
    return format_si(value, "").strip().replace(" ", "")

"""From one total to another, a bar for each thing that changed it.

In: `Waterfall`. Out: SVG. Bars hang where the one above ends; what nobody explains is hatched, so
it is seen without colour; every bar has its value and who measured it beside it.
"""

from dataclasses import dataclass

from rooflight.ui.svg import marks as svg
from rooflight.units import format_seconds

_MARGIN = 24.0
_NAMES = 300.0  # where bars begin
_VALUES = 190.0  # what stands right of them
_ROW = 30.0
_BAR = 18.0
_TOP = 64.0
_HATCH = (
    '<defs><pattern id="unknown" width="6" height="6" patternUnits="userSpaceOnUse"'
    f' patternTransform="rotate(45)"><rect width="6" height="6" fill="{svg.EMPTY}"/>'
    f'<line x1="0" y1="0" x2="0" y2="6" stroke="{svg.MUTED}" stroke-width="2"/></pattern></defs>'
)


@dataclass(frozen=True, slots=True)
class WaterfallBar:
    """Seconds more, or less, and who says so; nobody does of what is left over."""

    name: str
    seconds: float
    witness: str


@dataclass(frozen=True, slots=True)
class Waterfall:
    """From `before_s` to `after_s`; the changes add up to the difference."""

    title: str
    before: str
    before_s: float
    changes: tuple[WaterfallBar, ...]
    after: str
    after_s: float

    @property
    def reaches(self) -> tuple[float, ...]:
        """Where the total stands after each change."""
        at, found = self.before_s, list[float]()
        for change in self.changes:
            at += change.seconds
            found.append(at)
        return tuple(found)


def waterfall_svg(chart: Waterfall, *, width: int = 920) -> str:
    """The picture: both totals, and every change between them."""
    ends = (0.0, chart.before_s, chart.after_s, *chart.reaches)
    low, high = min(ends), max(ends)
    scale = (width - _NAMES - _VALUES) / ((high - low) or 1.0)
    body = [_HATCH, svg.text(_MARGIN, 34, chart.title, size=17, weight="bold")]
    body += _total(chart.before, chart.before_s, _TOP, low, scale)
    start = chart.before_s
    for at, (change, stop) in enumerate(zip(chart.changes, chart.reaches, strict=True), 1):
        body += _change(change, start, stop, _TOP + at * _ROW, low, scale)
        start = stop
    bottom = _TOP + (len(chart.changes) + 1) * _ROW
    body += _total(chart.after, chart.after_s, bottom, low, scale)
    return svg.document(width, bottom + _ROW + 8, title=chart.title, body=body)


def _total(name: str, seconds: float, y: float, low: float, scale: float) -> list[str]:
    left, right = _place(0.0, low, scale), _place(seconds, low, scale)
    words = format_seconds(seconds)
    return [
        svg.text(_NAMES - 12, y + 14, name, anchor="end", weight="bold"),
        svg.rect(left, y, right - left, _BAR, fill=svg.MUTED, tooltip=f"{name}: {words}"),
        svg.text(right + 8, y + 14, words, weight="bold"),
    ]


def _change(
    change: WaterfallBar, start: float, stop: float, y: float, low: float, scale: float
) -> list[str]:
    left, right = (_place(at, low, scale) for at in sorted((start, stop)))
    sign = "+" if change.seconds >= 0 else "-"
    words = sign + format_seconds(abs(change.seconds))
    fill = svg.PALETTE[1] if change.seconds >= 0 else svg.PALETTE[2]
    said = f"{words}, {change.witness}" if change.witness else words
    edge = _place(stop, low, scale)
    return [
        svg.text(_NAMES - 12, y + 14, change.name, anchor="end"),
        svg.rect(
            left,
            y,
            max(right - left, 1.0),
            _BAR,
            fill=fill if change.witness else "url(#unknown)",
            tooltip=f"{change.name}: {said}",
        ),
        svg.text(right + 8, y + 14, said, fill=svg.MUTED),
        svg.line(edge, y + _BAR, edge, y + _ROW, stroke=svg.MUTED),
    ]


def _place(seconds: float, low: float, scale: float) -> float:
    return _NAMES + (seconds - low) * scale

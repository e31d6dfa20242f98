"""A moment of a stream through a chip as a picture: HBM, the buffers of VMEM, the unit at work.

In: a `StreamStill`: what is where. Out: SVG. Chunks carry their numbers; what moves has an arrow.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rooflight.ui.svg import marks as svg

_WIDTH, _HEIGHT = 880.0, 330.0
_TOP = 84.0
_BOX = 44.0
_COLOURS = {"in": "#bcdcf2", "out": "#f6cfb2"}  # pale, for dark letters
_HBM, _VMEM, _UNIT = 24.0, 400.0, 700.0
_MOST = 16  # chunks of an array


@dataclass(frozen=True, slots=True)
class StreamStill:
    """Which chunks are still in HBM, in each buffer, at work, done; what is under way."""

    title: str
    words: str
    names: Mapping[str, str]  # hbm, vmem, unit: what they are called, with their sizes
    count: int  # chunks
    waiting: frozenset[int]  # not yet loaded
    stored: frozenset[int]
    arriving: tuple[int | None, ...]  # for each buffer of operands
    leaving: tuple[int | None, ...]  # for each buffer of results
    working: int | None
    loading: int | None
    storing: int | None


def stream_svg(still: StreamStill) -> str:
    """HBM at the left, VMEM in the middle, the unit at the right."""
    body = [
        svg.text(24, 28, still.title, size=15, weight="bold"),
        svg.text(24, 48, still.words, fill=svg.MUTED),
        *_frame(still),
        *_array(still, "operands", _TOP + 40, still.waiting, "in"),
        *_array(still, "result", _TOP + 150, still.stored, "out"),
        *_buffers(still.arriving, "buffers for operands", _TOP + 40, "in"),
        *_buffers(still.leaving, "buffers for results", _TOP + 150, "out"),
        *_unit(still),
        *_moves(still),
    ]
    return svg.document(_WIDTH, _HEIGHT, title=f"{still.title}: {still.words}", body=body)


def _frame(still: StreamStill) -> list[str]:
    spans = (("hbm", _HBM, 330.0), ("vmem", _VMEM, 250.0), ("unit", _UNIT, 156.0))
    parts: list[str] = []
    for name, x, width in spans:
        parts.append(_panel(x, _TOP - 14, width, 240))
        parts.append(svg.text(x + 12, _TOP + 6, still.names[name], weight="bold"))
    return parts


def _panel(x: float, y: float, width: float, height: float) -> str:
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="8"'
        f' fill="none" stroke="{svg.MUTED}"/>'
    )


def _array(still: StreamStill, name: str, y: float, there: frozenset[int], look: str) -> list[str]:
    """The chunks of an array in HBM, empty where they are not yet, or no longer needed."""
    each = min(40.0, 306.0 / min(still.count, _MOST))
    parts = [svg.text(_HBM + 12, y - 8, name, fill=svg.MUTED)]
    for chunk in range(min(still.count, _MOST)):
        parts += _chunk(_HBM + 12 + chunk * each, y, each - 3, 40, chunk, chunk in there, look)
    return parts


def _chunk(
    x: float, y: float, width: float, height: float, number: int, is_there: bool, look: str
) -> list[str]:
    parts = [svg.rect(x, y, width, height, fill=_COLOURS[look] if is_there else svg.EMPTY)]
    if is_there:
        middle = x + width / 2
        parts.append(
            svg.text(
                middle, y + height / 2 + 4, str(number), size=11, fill=svg.ON_BAR, anchor="middle"
            )
        )
    return parts


def _buffers(chunks: Sequence[int | None], name: str, y: float, look: str) -> list[str]:
    parts = [svg.text(_VMEM + 12, y - 8, name, fill=svg.MUTED)]
    for slot, chunk in enumerate(chunks):
        x = _VMEM + 12 + slot * (_BOX + 10)
        parts += _chunk(x, y, _BOX, _BOX, chunk or 0, chunk is not None, look)
    return parts


def _unit(still: StreamStill) -> list[str]:
    x, y = _UNIT + 48, _TOP + 90
    parts = _chunk(x, y, 60, 60, still.working or 0, still.working is not None, "in")
    words = "idle" if still.working is None else f"works on {still.working}"
    return [*parts, svg.text(x + 30, y + 80, words, anchor="middle", fill=svg.MUTED)]


def _moves(still: StreamStill) -> list[str]:
    parts: list[str] = []
    if still.loading is not None:
        parts += _arrow(358, 396, _TOP + 62, f"load {still.loading}")
    if still.storing is not None:
        parts += _arrow(396, 358, _TOP + 172, f"store {still.storing}")
    if still.working is not None:
        parts += _arrow(654, 744, _TOP + 112, "")
    return parts


def _arrow(x1: float, x2: float, y: float, words: str) -> list[str]:
    way = 1 if x2 > x1 else -1
    head = [(x2 - 8 * way, y - 5), (x2, y), (x2 - 8 * way, y + 5)]
    colour = svg.PALETTE[0] if way > 0 else svg.PALETTE[1]
    return [
        svg.line(x1, y, x2, y, stroke=colour, width=3),
        svg.polyline(head, stroke=colour, width=3),
        svg.text((x1 + x2) / 2, y - 10, words, size=11, fill=colour, anchor="middle"),
    ]

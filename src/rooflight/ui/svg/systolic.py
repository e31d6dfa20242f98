"""One cycle of a systolic array as a picture: weights, activations and sums where they are.

In: a `SystolicStill`. Out: SVG. In a cell stand its weight (w), the activation that passes (x) and
the sum that goes down; a cell that multiplies has a thick rim. What comes next waits outside.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rooflight.ui.svg import marks as svg

_CELL = 78.0
_GAP = 14.0
_STEP = _CELL + _GAP
_QUEUE = 34.0  # room for each value that waits
_TOP, _MARGIN = 58.0, 24.0
_WEIGHT, _ACTIVATION, _RESULT = svg.PALETTE[0], svg.PALETTE[2], svg.PALETTE[1]

Number = int | None


@dataclass(frozen=True, slots=True)
class CellView:
    """What lies in a cell; None where there is nothing."""

    weight: Number
    next_weight: Number
    activation: Number
    partial: Number


@dataclass(frozen=True, slots=True)
class SystolicStill:
    """A cycle: the cells, what waits at the left and above (the next last), the sums so far."""

    title: str
    words: str
    cells: tuple[tuple[CellView, ...], ...]
    left: tuple[tuple[Number, ...], ...]  # for each row
    above: tuple[tuple[Number, ...], ...]  # for each column
    result: tuple[tuple[Number, ...], ...]
    fresh: tuple[tuple[int, int], ...]  # of the result: what came in this cycle


def systolic_svg(still: SystolicStill) -> str:
    """The array with its queues, and the result beside it."""
    rows, cols = len(still.cells), len(still.cells[0])
    waiting = max(len(queue) for queue in (*still.left, *still.above))
    x0, y0 = _MARGIN + waiting * _QUEUE + 20, _TOP + waiting * 18 + 26
    body = [
        svg.text(_MARGIN, 28, still.title, size=15, weight="bold"),
        svg.text(_MARGIN, 48, still.words, fill=svg.MUTED),
        svg.text(x0, _TOP + 20, "weights W come from above", fill=_WEIGHT),
        svg.text(_MARGIN, y0 - 8, "activations X", fill=_ACTIVATION),
    ]
    for j, queue in enumerate(still.above):
        body += _queue_above(queue, x0 + j * _STEP, y0 - 10)
    for i, queue in enumerate(still.left):
        body += _queue_left(queue, x0 - 12, y0 + i * _STEP)
    for i, row in enumerate(still.cells):
        for j, cell in enumerate(row):
            body += _cell(cell, x0 + j * _STEP, y0 + i * _STEP)
    foot = y0 + rows * _STEP
    body += _sums(still, x0, foot)
    right = x0 + cols * _STEP + 40
    body += _result(still, right, y0)
    width = right + max(len(still.result[0]) * 46.0, 150.0) + _MARGIN
    height = max(foot + 40, y0 + len(still.result) * 26 + 40)
    return svg.document(width, height, title=f"{still.title}: {still.words}", body=body)


def _queue_above(queue: Sequence[Number], x: float, foot: float) -> list[str]:
    """What will move down next stands lowest."""
    return [
        svg.text(x + _CELL / 2, foot - 18 * back, str(value), fill=_WEIGHT, anchor="middle")
        for back, value in enumerate(reversed(queue))
        if value is not None
    ]


def _queue_left(queue: Sequence[Number], right: float, y: float) -> list[str]:
    return [
        svg.text(
            right - _QUEUE * back, y + _CELL / 2 + 4, str(value), fill=_ACTIVATION, anchor="end"
        )
        for back, value in enumerate(reversed(queue))
        if value is not None
    ]


def _cell(cell: CellView, x: float, y: float) -> list[str]:
    is_busy = cell.activation is not None
    rim = svg.INK if is_busy else svg.GRID
    parts = [
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{_CELL}" height="{_CELL}" rx="6"'
        f' fill="{svg.EMPTY}" stroke="{rim}" stroke-width="{2 if is_busy else 1}"/>'
    ]
    if cell.weight is not None:
        parts.append(svg.text(x + 8, y + 19, f"w {cell.weight}", fill=_WEIGHT, weight="bold"))
    if cell.next_weight is not None:
        words = f"next {cell.next_weight}"
        parts.append(svg.text(x + _CELL - 7, y + 19, words, size=9, fill=_WEIGHT, anchor="end"))
    if cell.activation is not None:
        words = f"x {cell.activation}"
        parts.append(svg.text(x + 8, y + 42, words, fill=_ACTIVATION, weight="bold"))
    if cell.partial is not None:
        parts.append(svg.text(x + _CELL - 8, y + 66, str(cell.partial), size=14, anchor="end"))
    return parts


def _sums(still: SystolicStill, x0: float, foot: float) -> list[str]:
    """The sums that leave at the foot in this cycle."""
    parts: list[str] = []
    for j, cell in enumerate(still.cells[-1]):
        if cell.partial is not None:
            x = x0 + j * _STEP + _CELL / 2
            parts.append(svg.line(x, foot - 10, x, foot + 4, stroke=_RESULT, width=2))
            parts.append(
                svg.text(x, foot + 20, str(cell.partial), fill=_RESULT, anchor="middle", size=13)
            )
    return parts


def _result(still: SystolicStill, x: float, y: float) -> list[str]:
    """The matmul as far as it has left the array; what is new is bold."""
    parts = [svg.text(x, y - 8, "sums so far: Y = X W", fill=_RESULT)]
    for i, row in enumerate(still.result):
        for j, value in enumerate(row):
            words = "." if value is None else str(value)
            is_new = (i, j) in still.fresh
            parts.append(
                svg.text(
                    x + 40 + j * 46,
                    y + 16 + i * 26,
                    words,
                    size=13,
                    fill=_RESULT if is_new else svg.INK if value is not None else svg.MUTED,
                    anchor="end",
                    weight="bold" if is_new else "normal",
                )
            )
    return parts

"""The systolic array of Chip: a small matmul, cycle by cycle, with the values that move."""

from rooflight.costs.systolic import Cycle, Cycles, Matrix, systolic_cycles, systolic_steps
from rooflight.errors import UsageError
from rooflight.hardware.chip import Chip, MatrixUnit
from rooflight.ui.answer import (
    Answer,
    Column,
    Fact,
    Film,
    Frame,
    Table,
    show_count,
    show_seconds,
    show_share,
)
from rooflight.ui.browser.view import ViewQuery
from rooflight.ui.svg.systolic import CellView, Number, SystolicStill, systolic_svg

_MOST_CYCLES = 64
_SEEN = 4  # values that are seen to wait
_COLUMNS = (
    Column("array", "array"),
    Column("matmul", "matmul"),
    Column("fill_cycles", "fill", show_count),
    Column("stream_cycles", "stream", show_count),
    Column("drain_cycles", "drain", show_count),
    Column("total_cycles", "cycles", show_count),
    Column("seconds", "time", show_seconds),
    Column("utilisation", "cells at work", show_share),
)


def systolic_answer(question: ViewQuery, chip: Chip) -> Answer:
    """The small array that is drawn, and the chip's own by the same formula."""
    rows, cols, m, k, n = (question.count(name) for name in ("rows", "cols", "m", "k", "n"))
    double = question.text("registers") == "2"
    small = systolic_cycles(m, k, n, MatrixUnit(rows, cols, 1, 1.0), double_buffer=double)
    if small.total > _MOST_CYCLES:
        raise UsageError(
            f"[{m},{k}] x [{k},{n}] takes {small.total} cycles on {rows} x {cols} cells; at most"
            f" {_MOST_CYCLES} can be watched",
            hint="take a larger array or smaller matrices: 4 x 4 cells for [6,4] x [4,4]",
        )
    x = tuple(tuple((2 * i + j) % 5 + 1 for j in range(k)) for i in range(m))
    w = tuple(tuple((i + 3 * j) % 4 + 1 for j in range(n)) for i in range(k))
    cycles = systolic_steps(x, w, rows=rows, cols=cols, double_buffer=double)
    return Answer(
        sentences=(
            f"[{m},{k}] x [{k},{n}] takes {small.total} cycles on {rows} x {cols} cells:"
            f" {small.fill} to fill, {small.stream} to stream, {small.drain} to drain",
            "Weights come from above and stay; activations pass to the right, each row one cycle"
            " after the row above; sums go down and leave at the foot.",
        ),
        facts=(
            Fact("total_cycles", "cycles", small.total, show_count),
            Fact("utilisation", "cells at work", small.utilisation, show_share, "over all cycles"),
        ),
        films=(_film(cycles, x, w, rows, cols),),
        tables=(_table(question, chip, small, double=double),),
    )


def _table(question: ViewQuery, chip: Chip, small: Cycles, *, double: bool) -> Table:
    rows, cols, m, k, n = (question.text(name) for name in ("rows", "cols", "m", "k", "n"))
    found = [_row(f"drawn: {rows} x {cols}", f"[{m},{k}] x [{k},{n}]", small, None)]
    unit = chip.matrix_unit
    if unit and chip.kind == "tpu":  # tensor cores are not systolic
        b, d, f = (question.count(name) for name in "bdf")
        real = systolic_cycles(b, d, f, unit, double_buffer=double)
        name = f"{chip.title}: {unit.count} of {unit.rows} x {unit.cols}"
        found.append(_row(name, f"[{b},{d}] x [{d},{f}]", real, real.total / unit.clock_hz))
    return Table(
        "cycles", "The drawn array, and the chip's own for B, D and F", _COLUMNS, tuple(found)
    )


def _row(
    array: str, matmul: str, cycles: Cycles, seconds: float | None
) -> tuple[str | float | None, ...]:
    parts = (cycles.fill, cycles.stream, cycles.drain, cycles.total)
    return (array, matmul, *parts, seconds, cycles.utilisation)


def _film(cycles: tuple[Cycle, ...], x: Matrix, w: Matrix, rows: int, cols: int) -> Film:
    result: list[list[Number]] = [[None] * len(w[0]) for _ in x]
    frames: list[Frame] = []
    for cycle in cycles:
        for i, j, value in cycle.leaving:
            result[i][j] = (result[i][j] or 0) + value
        words = (
            f"Cycle {cycle.number + 1} of {len(cycles)}: {cycle.busy} of {rows * cols} cells"
            f" multiply, {len(cycle.leaving)} sums leave"
        )
        later = cycles[cycle.number + 1 : cycle.number + 1 + _SEEN]
        frames.append(Frame(systolic_svg(_still(cycle, later, result, words)), words))
    caption = (
        "w is the weight of a cell, next the one that waits in its second register, x the"
        " activation that passes, the number below the sum that goes down. A thick rim: the cell"
        " multiplies."
    )
    return Film("systolic", "A systolic array, cycle by cycle", tuple(frames), caption, 0.8)


def _still(
    cycle: Cycle, later: tuple[Cycle, ...], result: list[list[Number]], words: str
) -> SystolicStill:
    rows, cols = len(cycle.cells), len(cycle.cells[0])
    soon = list(reversed(later))
    pad: list[Number] = [None] * (_SEEN - len(soon))
    return SystolicStill(
        title="X W on a systolic array",
        words=words,
        cells=tuple(
            tuple(CellView(c.weight, c.next_weight, c.activation, c.partial) for c in row)
            for row in cycle.cells
        ),
        left=tuple((*pad, *(s.cells[i][0].activation for s in soon)) for i in range(rows)),
        above=tuple((*pad, *(_entering(s, j) for s in soon)) for j in range(cols)),
        result=tuple(map(tuple, result)),
        fresh=tuple((i, j) for i, j, _ in cycle.leaving),
    )


def _entering(cycle: Cycle, j: int) -> Number:
    """The weight that comes into the top cell of a column; one that has come waits there."""
    top = cycle.cells[0][j]
    return top.next_weight if top.activation is None or top.next_weight is not None else None

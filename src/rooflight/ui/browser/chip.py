"""Chip: its parts and rates, its systolic array and its streaming from HBM, step by step.

Rates are those of `rooflight chips`; cycles are `costs.systolic`, streaming is `costs.streaming`.
"""

from dataclasses import replace

from rooflight.costs.systolic import Cycle, Cycles, Matrix, systolic_cycles, systolic_steps
from rooflight.dtypes import DTYPES
from rooflight.errors import UsageError
from rooflight.hardware.catalog import chip_names
from rooflight.hardware.chip import Chip, MatrixUnit
from rooflight.ui.answer import (
    Answer,
    Column,
    Fact,
    Film,
    Frame,
    Picture,
    Table,
    ViewLink,
    show_count,
    show_seconds,
    show_share,
)
from rooflight.ui.answers.hardware import chip_answer
from rooflight.ui.browser.chip_stream import stream_answer
from rooflight.ui.browser.view import Field, View, ViewQuery
from rooflight.ui.svg.chip import chip_svg
from rooflight.ui.svg.systolic import CellView, Number, SystolicStill, systolic_svg

_SIDES = tuple(str(n) for n in range(1, 7))
_SIZES = tuple(str(n) for n in range(1, 13))
_CHUNKS = tuple(str(n) for n in range(1, 17))
_POWERS = tuple(str(2**n) for n in range(13))


def answer(question: ViewQuery) -> Answer:
    """The part of the chip that was asked for."""
    chip = question.slice("on").chip
    match question.text("show"):
        case "systolic array":
            found = systolic_answer(question, chip)
        case "HBM streaming":
            found = stream_answer(question, chip)
        case _:
            found = _parts(chip)
    return replace(found, links=_links(question), command=_command(question, chip))


def _parts(chip: Chip) -> Answer:
    words = f"The parts of {chip.title} with their sizes and rates"
    how = (
        "Everything a program computes on comes from HBM through on-chip memory into a unit, and"
        " goes back the same way."
    )
    said = chip_answer(chip)
    drawn = (Picture("parts", chip_svg(chip), words, 640),)
    return replace(said, sentences=(*said.sentences, how), pictures=drawn)


def _links(question: ViewQuery) -> tuple[ViewLink, ...]:
    kept = tuple((name, question.text(name)) for name in ("on", "b", "d", "f", "dtype"))
    others = [s for s in _SHOW if s != question.text("show")]
    return (
        *(ViewLink(f"Its {name}", "chip", (("show", name), *kept)) for name in others),
        ViewLink("The same matmul under the roof", "roofline", kept),
    )


def _command(question: ViewQuery, chip: Chip) -> str:
    if question.text("show") == "parts":
        return f"rooflight chips {chip.name}"
    size = "x".join(question.text(name) for name in "bdf")
    return f"rooflight roofline --on {chip.name} --dtype {question.text('dtype')} --matmul {size}"


_SHOW = ("parts", "systolic array", "HBM streaming")
_DRAWN = "of the drawn array"
_SMALL = "of the drawn matmul"

_ARRAY = ("show", "systolic array")
_STREAM = ("show", "HBM streaming")
_MATMUL = ("show", "systolic array", "HBM streaming")

VIEW = View(
    "chip",
    "Chip",
    "Its parts and rates; a systolic array and streaming from HBM, step by step.",
    (
        Field("show", "Show", "choice", "systolic array", choices=_SHOW),
        Field("on", "Chip", "text", "v5e", "any chip of `rooflight chips`", chip_names()),
        Field("rows", "Rows", "count", "4", _DRAWN, stops=_SIDES, most=6, when=_ARRAY),
        Field("cols", "Columns", "count", "4", _DRAWN, stops=_SIDES, most=6, when=_ARRAY),
        Field("m", "m", "count", "6", f"rows of X, {_SMALL}", stops=_SIZES, most=16, when=_ARRAY),
        Field("k", "k", "count", "4", _SMALL, stops=_SIZES, most=16, when=_ARRAY),
        Field("n", "n", "count", "4", _SMALL, stops=_SIZES, most=16, when=_ARRAY),
        Field(
            *("registers", "Weight registers", "choice", "2", "in each cell"),
            choices=("1", "2"),
            when=_ARRAY,
        ),
        Field(
            *("op", "Op", "choice", "matmul", "that is streamed"),
            choices=("matmul", "elementwise product"),
            when=_STREAM,
        ),
        Field(
            *("b", "B", "count", "256", "[B,D] x [D,F], or two of [B,D]"),
            stops=_POWERS,
            most=1e9,
            when=_MATMUL,
        ),
        Field("d", "D", "count", "4096", "of the chip's matmul", most=1e9, when=_MATMUL),
        Field("f", "F", "count", "16384", "of the chip's matmul", most=1e9, when=_MATMUL),
        Field("dtype", "Dtype", "choice", "bf16", choices=tuple(DTYPES), when=_STREAM),
        Field("chunks", "Chunks", "count", "8", stops=_CHUNKS, most=16, when=_STREAM),
        Field(
            *("buffers", "Buffers", "count", "2", "for each side"),
            stops=("1", "2", "3", "4"),
            most=4,
            when=_STREAM,
        ),
    ),
    answer,
)


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

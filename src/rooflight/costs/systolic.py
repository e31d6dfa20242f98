"""Cycles of a matmul on a weight-stationary systolic array (the TPU's MXU; book ch. 2, app. B).

A tile of weights sits in a grid of rows x cols cells. Activations enter at the left, row i one
cycle after row i - 1, and move right; partial sums move down and leave at the bottom. Weights
shift in from the top, column j one cycle after column j - 1, so a column is ready as the first
activation reaches it.

A systolic array cycle by cycle, with the values that move: the formula of `systolic`, watched.
Timing (book ch. 2, app. B): tile t of the weights enters column j from the top at cycle t P + j,
one row per cycle; row r of the activations reaches cell (i, j) at cycle rows + t P + r + i + j; its
sum leaves the foot of column j after the last row. P is the period of `systolic_cycles`. k and n
are padded with zeros.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rooflight.hardware.chip import MatrixUnit

Matrix = Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True)
class Cycles:
    """Cycles of the busiest array: loading its first tile, streaming, draining its last sums.

    `utilisation` is useful multiply-adds over all cells of all arrays and all cycles.
    """

    fill: int
    stream: int
    drain: int
    utilisation: float

    @property
    def total(self) -> int:
        return self.fill + self.stream + self.drain


def systolic_cycles(
    m: int, k: int, n: int, unit: MatrixUnit, *, double_buffer: bool = True
) -> Cycles:
    """Cycles of [m,k] x [k,n], padded to whole tiles dealt out evenly to the unit's arrays.

    total = rows + (tiles - 1) * period + m + (rows + cols - 2). With a second weight register in
    each cell the next tile loads behind the current one and period = max(m, rows): no bubble from
    m = rows on. Without, a load follows the last activation: period = m + rows - 1.

    It stops holding when memory cannot feed m activations and rows weights a period (see
    `roofline`), and on GPU tensor cores, which are not systolic.

    >>> unit = MatrixUnit(rows=128, cols=128, count=1, clock_hz=1e9)
    >>> systolic_cycles(1024, 128, 128, unit).total
    1406
    """
    tiles = -(-k // unit.rows) * -(-n // unit.cols)
    busiest = -(-tiles // unit.count)
    period = max(m, unit.rows) if double_buffer else m + unit.rows - 1
    fill, stream, drain = unit.rows, (busiest - 1) * period + m, unit.rows + unit.cols - 2
    cells = unit.rows * unit.cols * unit.count
    return Cycles(fill, stream, drain, m * k * n / (cells * (fill + stream + drain)))


@dataclass(frozen=True, slots=True)
class Cell:
    """One multiplier in one cycle; None where there is nothing."""

    weight: int | None  # the one in use
    next_weight: int | None  # moving down, or waiting, in the second register
    activation: int | None  # passing to the right
    partial: int | None  # the sum that moves down: what came from above and its own product


@dataclass(frozen=True, slots=True)
class Cycle:
    """The whole array in one cycle, and the sums that leave it: (row of X, column of W, value)."""

    number: int
    cells: tuple[tuple[Cell, ...], ...]
    leaving: tuple[tuple[int, int, int], ...]

    @property
    def busy(self) -> int:
        """Cells that multiply in this cycle."""
        return sum(cell.activation is not None for row in self.cells for cell in row)


@dataclass(frozen=True, slots=True)
class _Tiles:
    """The tiles of W in the order they are used, each with the columns of X it meets."""

    x: Matrix
    w: Matrix
    rows: int
    cols: int

    @property
    def origins(self) -> list[tuple[int, int]]:
        """First row and column of each tile: a column of tiles after another."""
        k, n = len(self.w), len(self.w[0])
        return [(i, j) for j in range(0, n, self.cols) for i in range(0, k, self.rows)]

    def weight(self, tile: int, i: int, j: int) -> int:
        row, col = (a + b for a, b in zip(self.origins[tile], (i, j), strict=True))
        return self.w[row][col] if row < len(self.w) and col < len(self.w[0]) else 0

    def activation(self, tile: int, r: int, i: int) -> int:
        column = self.origins[tile][0] + i
        return self.x[r][column] if column < len(self.x[0]) else 0


def systolic_steps(
    x: Matrix, w: Matrix, *, rows: int, cols: int, double_buffer: bool = True
) -> tuple[Cycle, ...]:
    """Every cycle of x @ w on one array of rows x cols cells.

    >>> cycles = systolic_steps([[1, 2]], [[3], [4]], rows=2, cols=1)
    >>> len(cycles), cycles[-1].leaving
    (4, ((0, 0, 11),))
    """
    m, tiles = len(x), _Tiles(x, w, rows, cols)
    period = max(m, rows) if double_buffer else m + rows - 1
    count = len(tiles.origins)
    total = rows + (count - 1) * period + m + rows + cols - 2
    return tuple(
        _cycle(tiles, number, period, double_buffer=double_buffer) for number in range(total)
    )


def _cycle(tiles: _Tiles, number: int, period: int, *, double_buffer: bool) -> Cycle:
    cells = tuple(
        tuple(
            _cell(tiles, number, period, i, j, double_buffer=double_buffer)
            for j in range(tiles.cols)
        )
        for i in range(tiles.rows)
    )
    leaving: list[tuple[int, int, int]] = []
    for j in range(tiles.cols):
        found = _work(tiles, number, period, tiles.rows - 1, j)
        column = tiles.origins[found[0]][1] + j if found else 0
        partial = cells[-1][j].partial
        if found and partial is not None and column < len(tiles.w[0]):
            leaving.append((found[1], column, partial))
    return Cycle(number, cells, tuple(leaving))


def _work(tiles: _Tiles, number: int, period: int, i: int, j: int) -> tuple[int, int] | None:
    """The tile and the row of X that a cell works on in a cycle."""
    since = number - tiles.rows - i - j
    if since < 0:
        return None
    tile = min(since // period, len(tiles.origins) - 1)
    row = since - tile * period
    return (tile, row) if row < len(tiles.x) else None


def _cell(tiles: _Tiles, number: int, period: int, i: int, j: int, *, double_buffer: bool) -> Cell:
    found = _work(tiles, number, period, i, j)
    in_use = (number - tiles.rows - i - j) // period
    tile = min(in_use, len(tiles.origins) - 1)
    weight = tiles.weight(tile, i, j) if in_use >= 0 else None
    moving = _moving(tiles, number, period, i, j)
    if moving is not None and not double_buffer and found is None:
        weight, moving = moving, None  # the one register holds what passes through
    activation = partial = None
    if found:
        activation = tiles.activation(*found, i)
        partial = sum(
            tiles.activation(*found, above) * tiles.weight(found[0], above, j)
            for above in range(i + 1)
        )
    return Cell(weight, moving, activation, partial)


def _moving(tiles: _Tiles, number: int, period: int, i: int, j: int) -> int | None:
    """The weight of a later tile in this cell: on its way down, or there and waiting.

    In cycle t P + j + s the weight of row rows - 1 - s enters at the top; in cell (i, j) lies the
    one that entered i cycles ago, until the cell's own has come.
    """
    tile, since = divmod(number - j, period)
    if number < j or tile >= len(tiles.origins):
        tile, since = len(tiles.origins) - 1, number - j - (len(tiles.origins) - 1) * period
    if since < i or number - tiles.rows - i - j >= tile * period:
        return None
    row = max(tiles.rows - 1 - (since - i), i)
    return tiles.weight(tile, row, j)

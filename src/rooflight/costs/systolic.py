"""Cycles of a matmul on a weight-stationary systolic array (the TPU's MXU; book ch. 2, app. B).

A tile of weights sits in a grid of rows x cols cells. Activations enter at the left, row i one
cycle after row i - 1, and move right; partial sums move down and leave at the bottom. Weights
shift in from the top, column j one cycle after column j - 1, so a column is ready as the first
activation reaches it.
"""

from dataclasses import dataclass

from rooflight.hardware.chip import MatrixUnit


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

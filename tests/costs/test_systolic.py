"""The closed form of the systolic array against a simulator that moves every register."""

import random
from dataclasses import dataclass, replace
from itertools import count, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rooflight.costs.systolic import systolic_cycles
from rooflight.hardware.chip import MatrixUnit

Matrix = list[list[int]]
SIZES = {
    "m": st.integers(1, 7),
    "k": st.integers(1, 7),
    "n": st.integers(1, 7),
    "rows": st.integers(1, 3),
    "cols": st.integers(1, 3),
    "arrays": st.integers(1, 3),
    "double_buffer": st.booleans(),
    "seed": st.integers(0, 2**32),
}


@dataclass(frozen=True, slots=True)
class Activation:
    value: int
    tile: int
    row: int  # of the left matrix


@dataclass(frozen=True, slots=True)
class Weight:
    value: int
    target: int  # the grid row it is meant for


@dataclass(frozen=True, slots=True)
class Cell:
    """The registers of one processing element."""

    weight: int = 0
    loaded: int = 0
    activation: Activation | None = None
    falling: Weight | None = None
    partial: int = 0


@dataclass(frozen=True, slots=True)
class Tile:
    left: Matrix  # m x rows
    weights: Matrix  # rows x cols
    first_col: int


class PortClashError(Exception):
    """Two tiles want to feed the same port in the same cycle."""


def one(candidates: list[Activation] | list[Weight]) -> Activation | Weight | None:
    if len(candidates) > 1:
        raise PortClashError
    return candidates[0] if candidates else None


def clock(
    cell: Cell,
    arriving: Activation | None,
    falling: Weight | None,
    above: int,
    row: int,
    double_buffer: bool,
) -> Cell:
    """One cycle of one cell; registers are read before any is written."""
    weight = cell.weight
    if double_buffer and arriving and arriving.row == 0:
        weight = cell.loaded
    after = replace(
        cell,
        weight=weight,
        activation=arriving,
        falling=falling,
        partial=above + (weight * arriving.value if arriving else 0),
    )
    if falling is None or falling.target != row:
        return after
    kept = {"loaded" if double_buffer else "weight": falling.value}
    return replace(after, falling=None, **kept)


def run_array(
    tiles: list[Tile], rows: int, cols: int, period: int, double_buffer: bool, out: Matrix
) -> int:
    """Starts a tile every `period` cycles, adds its sums to `out`, returns the cycles it took."""
    m = len(tiles[0].left)
    grid = [[Cell() for _ in range(cols)] for _ in range(rows)]
    missing = len(tiles) * m * cols
    for cycle in count():
        old = grid
        grid = [[Cell() for _ in range(cols)] for _ in range(rows)]
        for i, j in product(range(rows), range(cols)):
            arriving = old[i][j - 1].activation if j else None
            if j == 0:
                steps = [(p, cycle - p * period - rows - i) for p in range(len(tiles))]
                feed = [Activation(tiles[p].left[t][i], p, t) for p, t in steps if 0 <= t < m]
                entering = one(feed)
                arriving = entering if isinstance(entering, Activation) else None
            falling = old[i - 1][j].falling if i else None
            if i == 0:
                steps = [(p, rows - 1 - (cycle - p * period - j)) for p in range(len(tiles))]
                load = [Weight(tiles[p].weights[r][j], r) for p, r in steps if 0 <= r < rows]
                entering = one(load)
                falling = entering if isinstance(entering, Weight) else None
            above = old[i - 1][j].partial if i else 0
            grid[i][j] = clock(old[i][j], arriving, falling, above, i, double_buffer)
            if i == rows - 1 and arriving:
                missing -= 1
                out[arriving.row][tiles[arriving.tile].first_col + j] += grid[i][j].partial
        if not missing:
            return cycle + 1
    raise AssertionError("unreachable: the array drains")


def cut(left: Matrix, right: Matrix, rows: int, cols: int) -> list[Tile]:
    """Whole tiles of the weights, each with the activations that meet it."""
    starts = product(range(0, len(right), rows), range(0, len(right[0]), cols))
    return [
        Tile(
            [row[k0 : k0 + rows] for row in left],
            [row[n0 : n0 + cols] for row in right[k0 : k0 + rows]],
            n0,
        )
        for k0, n0 in starts
    ]


def fastest_right_run(left: Matrix, right: Matrix, unit: MatrixUnit, double_buffer: bool) -> int:
    """Cycles at the shortest period that still gives the product."""
    m, k, n = len(left), len(right), len(right[0])
    wanted = [[sum(left[t][i] * right[i][j] for i in range(k)) for j in range(n)] for t in range(m)]
    tiles = cut(left, right, unit.rows, unit.cols)
    hands = [tiles[a :: unit.count] for a in range(unit.count)]
    for period in count(1):
        out = [[0] * n for _ in range(m)]
        try:
            cycles = [
                run_array(hand, unit.rows, unit.cols, period, double_buffer, out)
                for hand in hands
                if hand
            ]
        except PortClashError:
            continue
        if out == wanted:
            return max(cycles)
    raise AssertionError("unreachable: a long enough period is right")


@settings(max_examples=150)
@given(**SIZES)
def test_closed_form_equals_the_fastest_schedule_that_gives_the_product(
    m: int, k: int, n: int, rows: int, cols: int, arrays: int, double_buffer: bool, seed: int
) -> None:
    draw = random.Random(seed)
    # Padding is drawn too: zeros there would hide a weight that arrives too early.
    whole_k, whole_n = -(-k // rows) * rows, -(-n // cols) * cols
    left = [[draw.randint(1, 10**6) for _ in range(whole_k)] for _ in range(m)]
    right = [[draw.randint(1, 10**6) for _ in range(whole_n)] for _ in range(whole_k)]
    unit = MatrixUnit(rows, cols, arrays, clock_hz=1.0)
    cycles = systolic_cycles(m, k, n, unit, double_buffer=double_buffer)
    assert cycles.total == fastest_right_run(left, right, unit, double_buffer)


@given(
    m=st.integers(1, 5000),
    k=st.integers(1, 5000),
    n=st.integers(1, 5000),
    rows=st.sampled_from([8, 128, 256]),
    arrays=st.integers(1, 8),
)
def test_no_cell_works_more_than_every_cycle(
    m: int, k: int, n: int, rows: int, arrays: int
) -> None:
    unit = MatrixUnit(rows, rows, arrays, clock_hz=1.0)
    pipelined = systolic_cycles(m, k, n, unit)
    plain = systolic_cycles(m, k, n, unit, double_buffer=False)
    assert 0 < plain.utilisation <= pipelined.utilisation < 1
    assert systolic_cycles(m + 1, k, n, unit).total > pipelined.total


@pytest.mark.parametrize(("m", "bubbles"), [(32, 96), (127, 1), (128, 0), (1024, 0)])
def test_pipelined_tiles_add_no_bubble_once_m_reaches_the_rows(m: int, bubbles: int) -> None:
    unit = MatrixUnit(rows=128, cols=128, count=1, clock_hz=1.0)
    one_tile, ten_tiles = (systolic_cycles(m, 128, n, unit) for n in (128, 1280))
    assert ten_tiles.total - one_tile.total == 9 * (m + bubbles)
    assert (ten_tiles.fill, ten_tiles.drain) == (one_tile.fill, one_tile.drain)


def test_a_long_matmul_fills_the_array() -> None:
    unit = MatrixUnit(rows=128, cols=128, count=4, clock_hz=1.0)
    assert systolic_cycles(8192, 8192, 8192, unit).utilisation > 0.999
    assert systolic_cycles(8192, 8192, 64, unit).utilisation < 0.5

"""The systolic array cycle by cycle: it multiplies, values move one cell a cycle, cycles agree."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rooflight.costs.systolic import Cycle, systolic_cycles, systolic_steps
from rooflight.hardware.chip import MatrixUnit

SIZES = st.integers(1, 6)


def steps(
    m: int, k: int, n: int, rows: int, cols: int, double_buffer: bool
) -> tuple[np.ndarray, np.ndarray, tuple[Cycle, ...]]:
    rng = np.random.default_rng(m + 7 * k + 49 * n)
    x, w = rng.integers(-9, 9, (m, k)), rng.integers(-9, 9, (k, n))
    cycles = systolic_steps(
        x.tolist(), w.tolist(), rows=rows, cols=cols, double_buffer=double_buffer
    )
    return x, w, cycles


@given(m=SIZES, k=SIZES, n=SIZES, rows=SIZES, cols=SIZES, double_buffer=st.booleans())
def test_the_sums_that_leave_are_the_product(
    m: int, k: int, n: int, rows: int, cols: int, double_buffer: bool
) -> None:
    x, w, cycles = steps(m, k, n, rows, cols, double_buffer)
    result = np.zeros((m, n), int)
    for cycle in cycles:
        for i, j, value in cycle.leaving:
            result[i, j] += value
    assert (result == x @ w).all()


@given(m=SIZES, k=SIZES, n=SIZES, rows=SIZES, cols=SIZES, double_buffer=st.booleans())
def test_cycles_and_utilisation_are_those_of_the_formula(
    m: int, k: int, n: int, rows: int, cols: int, double_buffer: bool
) -> None:
    _, _, cycles = steps(m, k, n, rows, cols, double_buffer)
    unit = MatrixUnit(rows, cols, 1, 1.0)
    formula = systolic_cycles(m, k, n, unit, double_buffer=double_buffer)
    assert len(cycles) == formula.total
    padded = m * -(-k // rows) * rows * -(-n // cols) * cols
    assert sum(cycle.busy for cycle in cycles) == padded


@given(m=SIZES, k=SIZES, n=SIZES, rows=SIZES, cols=SIZES)
def test_values_move_one_cell_a_cycle(m: int, k: int, n: int, rows: int, cols: int) -> None:
    """Activations to the right, sums and weights down: nothing is anywhere by magic."""
    _, _, cycles = steps(m, k, n, rows, cols, double_buffer=True)
    for before, now in pairwise(cycles):
        for i in range(rows):
            for j in range(cols):
                cell = now.cells[i][j]
                if cell.activation is not None:
                    assert cell.weight is not None
                    above = before.cells[i - 1][j].partial if i else 0
                    assert above is not None
                    assert cell.partial == above + cell.weight * cell.activation
                if j and cell.activation is not None:
                    assert cell.activation == before.cells[i][j - 1].activation
                if i and cell.next_weight is not None:
                    sources = before.cells[i - 1][j].next_weight, before.cells[i][j].next_weight
                    assert cell.next_weight in sources

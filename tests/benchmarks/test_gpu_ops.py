"""Published kernels of GPUs and our price of each: as far off as the package says."""

import math

import pytest

from benchmarks import gpu_ops
from rooflight.compile.time.gpu import gpu_rates

RATES = gpu_rates()


def test_nine_published_kernels_of_ten_lie_within_what_is_said() -> None:
    """By the constants of all GPUs; the full size has each GPU by those of the others."""
    for unit, kind in gpu_ops.UNITS.items():
        found = [abs(gpu_ops.error(k, RATES)) for k in gpu_ops.kernels() if k.kind == kind]
        said = RATES.errors[unit]
        assert len(found) == said.rows > 100
        assert sum(error <= said.p90 for error in found) >= 0.88 * len(found)
        assert math.isclose(gpu_ops.spread(found).median, said.median, rel_tol=0.3)


@pytest.mark.full
def test_the_constants_and_their_errors_are_those_of_the_published_kernels() -> None:
    found = gpu_ops.fitted()
    assert gpu_ops.rates_text(found) == gpu_ops.RATES.read_text()
    assert gpu_ops.table(found) in gpu_ops.PAGE.read_text()

"""The torus formulas of `torus` on whole arrays of layouts, for searches that try thousands.

Arrays have one row a layout and one column a torus axis. A column of size 1 is an axis the layout
does not use. Ranks by bandwidth and latency as `collective_time` does; no tiers, no bounds.
"""

from itertools import combinations
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def sweep_seconds(
    kind: Literal["all_gather", "reduce_scatter", "all_reduce", "all_to_all"],
    nbytes: Floats,
    *,
    sizes: Floats,
    rates: Floats,
    flight_s: Floats,
) -> Floats:
    """Expected seconds of one collective on every layout.

    Args:
        nbytes: V of each layout, shape [layouts].
        sizes: chips on each axis, shape [layouts, axes].
        rates: `Ring.bytes_per_s` of each axis.
        flight_s: hops * stride * hop_s of each axis.

    >>> one = np.ones((1, 1))
    >>> sweep_seconds(
    ...     "all_gather", np.array([9e10]), sizes=4 * one, rates=9e10 * one, flight_s=2e-6 * one
    ... )
    array([0.750002])
    """
    latency_s = flight_s.sum(axis=1)
    if kind == "all_to_all":
        return _exchange_seconds(nbytes, sizes, rates) + latency_s
    times = 2 if kind == "all_reduce" else 1
    return times * (_gather_seconds(nbytes, sizes, rates) + latency_s)


def _gather_seconds(nbytes: Floats, sizes: Floats, rates: Floats) -> Floats:
    """V * max over sets S of axes of (prod_S n - 1) / (N * sum_S w); see `torus.gather_time`."""
    axes = sizes.shape[1]
    worst = np.zeros(len(sizes))
    for count in range(1, axes + 1):
        for chosen in combinations(range(axes), count):
            columns = list(chosen)
            gathered = sizes[:, columns].prod(axis=1) - 1
            worst = np.maximum(worst, gathered / rates[:, columns].sum(axis=1))
    return nbytes * worst / sizes.prod(axis=1)


def _exchange_seconds(nbytes: Floats, sizes: Floats, rates: Floats) -> Floats:
    """max_i V * floor(n_i^2 / 4) / (n_i * N * w_i); see `torus.exchange_time`."""
    loads = np.floor(sizes**2 / 4) / (sizes * rates)
    return nbytes * loads.max(axis=1) / sizes.prod(axis=1)

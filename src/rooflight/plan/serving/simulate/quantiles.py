"""Mean and quantiles of a long stream of numbers in bounded memory.

Exact up to 16,384 numbers; beyond, a histogram with bins 1 % wide, whose quantiles are within
0.5 % of a number of the stream. Zero has a bin of its own; below 1 ns is the same bin as 1 ns.
"""

from dataclasses import dataclass

import numpy as np

from rooflight.plan.serving.simulate.arrivals import Floats

EXACT_UP_TO = 1 << 14
RELATIVE_ERROR = 0.005
_SMALLEST = 1e-9
_WIDTH = float(np.log1p(RELATIVE_ERROR) - np.log1p(-RELATIVE_ERROR))
_BINS = 1 + int(np.log(1e18) / _WIDTH)  # from a nanosecond to thirty years


@dataclass(frozen=True, slots=True)
class Quantiles:
    """What is told of a distribution."""

    count: int
    mean: float
    largest: float
    curve: tuple[float, ...]  # at 1 %, 2 % ... 99 %

    @property
    def p50(self) -> float:
        return self.curve[49]

    @property
    def p95(self) -> float:
        return self.curve[94]

    @property
    def p99(self) -> float:
        return self.curve[98]


class QuantileSketch:
    """Takes blocks of numbers, none negative."""

    __slots__ = ("_bins", "_count", "_exact", "_largest", "_sum")

    def __init__(self) -> None:
        self._count, self._sum, self._largest = 0, 0.0, 0.0
        self._exact: list[Floats] | None = []
        self._bins = np.zeros(_BINS + 1, dtype=np.int64)

    def add(self, values: Floats) -> None:
        if not values.size:
            return
        self._count += values.size
        self._sum += float(values.sum())
        self._largest = max(self._largest, float(values.max()))
        places = np.log(np.maximum(values, _SMALLEST) / _SMALLEST) / _WIDTH + 1
        places = np.where(values > 0, np.minimum(places, _BINS), 0).astype(np.int64)
        self._bins += np.bincount(places, minlength=_BINS + 1)
        if self._exact is not None:
            self._exact.append(values)
            if self._count > EXACT_UP_TO:
                self._exact = None

    def summary(self) -> Quantiles | None:
        """None of nothing."""
        if not self._count:
            return None
        return Quantiles(self._count, self._sum / self._count, self._largest, self._curve())

    def _curve(self) -> tuple[float, ...]:
        """For each percent the smallest number with at least so much of the stream up to it."""
        ranks = -(-np.arange(1, 100) * self._count // 100)  # of the sorted stream, from 1
        if self._exact is not None:
            return tuple(np.sort(np.concatenate(self._exact))[ranks - 1].tolist())
        places = np.searchsorted(np.cumsum(self._bins), ranks)
        middles = _SMALLEST * np.exp((places - 1) * _WIDTH) * (1 + RELATIVE_ERROR)
        return tuple(np.where(places > 0, np.minimum(middles, self._largest), 0.0).tolist())

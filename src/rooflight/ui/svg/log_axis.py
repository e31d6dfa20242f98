"""One logarithmic axis of a plot: from values to places, and where its ticks are."""

import math
from dataclasses import dataclass

from rooflight.units import format_si

_FEW_DECADES = 3.0  # below, 2 and 5 have ticks too


@dataclass(frozen=True, slots=True)
class LogAxis:
    """From 10**low to 10**high."""

    low: float
    high: float

    def share(self, value: float) -> float:
        """0 at the low end, 1 at the high end."""
        return (math.log10(value) - self.low) / (self.high - self.low)

    def value(self, share: float) -> float:
        """The inverse of `share`."""
        return 10 ** (self.low + (self.high - self.low) * share)

    @property
    def decades(self) -> list[float]:
        """The powers of ten on the axis, its ends included."""
        return [10.0**e for e in range(math.ceil(self.low), math.floor(self.high) + 1)]

    @property
    def ticks(self) -> list[float]:
        """The decades; on a short axis also 2 and 5 times each."""
        if self.high - self.low >= _FEW_DECADES:
            return self.decades
        powers = range(math.floor(self.low), math.floor(self.high) + 1)
        every = (step * 10.0**e for e in powers for step in (1, 2, 5))
        return [tick for tick in every if -1e-9 <= self.share(tick) <= 1 + 1e-9]


def tick_label(value: float) -> str:
    """A number with an SI prefix and no unit.

    >>> tick_label(2e6), tick_label(100)
    ('2M', '100')
    """
    return format_si(value, "").strip().replace(" ", "")

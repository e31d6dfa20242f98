"""`PricedTable`: what a fit asks of rows: their constants, and their seconds under given values.

Training rows (`forecast.calibrated.PartTable`) and serving rows (`serving_loop.ServingTable`) are
such tables; fitting, holding out and reporting know no more of them.
"""

from collections.abc import Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from rooflight.hardware.calibration import Constant
from rooflight.plan.training.forecast.calibrated import Floats, Values


class Priced(Protocol):
    """Seconds of every row."""

    @property
    def total(self) -> Floats: ...


class PricedTable(Protocol):
    """Rows of one workload, priced together."""

    @property
    def constants(self) -> Mapping[str, Constant]:
        """By name, in a fixed order."""
        ...

    @property
    def roof(self) -> Values:
        """The values at which the catalog alone answers."""
        ...

    def take(self, chosen: NDArray[np.bool_]) -> "PricedTable":
        """The table of some of the rows."""
        ...

    def seconds(self, values: Values) -> Priced:
        """Prices every row with the same constants."""
        ...


def typical_of(table: PricedTable) -> dict[str, float]:
    """What to expect where nobody measured."""
    return {c.name: c.typical for c in table.constants.values()}

"""Fits the constants of a calibration to measured seconds: robust, bounded, drawn to a prior.

In: a `PricedTable`, measured seconds, where to start from and how far to trust that. Out: values.
Minimises Huber's loss of log(predicted / measured) plus ((x - prior) / trust)^2 over the free
coordinates of the constants (`Constant.free`), by Levenberg and Marquardt's damped Gauss-Newton
steps. No randomness: the same rows give the same constants.

`PricedTable`: what a fit asks of rows: their constants, and their seconds under given values.
Training rows (`forecast.calibrated.PartTable`) and serving rows (`serving_loop.ServingTable`) are
such tables; fitting, holding out and reporting know no more of them.
"""

from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from rooflight.hardware.calibration import Constant
from rooflight.plan.training.forecast.calibrated import Floats, Values

Residuals = Callable[[Floats], Floats]
NOISE = 0.06  # the scatter of measurements that agree, as a log ratio
_HUBER = 0.08  # residuals beyond this pull no harder
_STEP = 1e-3
_MOST_STEPS = 30


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


def fit_values(
    table: PricedTable,
    measured_s: Floats,
    prior: Values,
    trust: float,
    *,
    start: Values | None = None,
) -> dict[str, float]:
    """The constants that fit best, none outside its range."""
    constants = table.constants
    target = np.log(measured_s)
    centre = _free(prior, constants)
    x = _free(start or prior, constants)

    def residuals(at: Floats) -> Floats:
        return np.log(table.seconds(_values(at, constants)).total) - target

    found = _minimise(residuals, x, centre, trust)
    return _values(found, constants)


def _minimise(residuals: Residuals, x: Floats, centre: Floats, trust: float) -> Floats:
    damping, r = 1e-2, residuals(x)
    loss = _loss(r, x, centre, trust)
    for _ in range(_MOST_STEPS):
        slopes = _slopes(residuals, x, r)
        weight = np.minimum(1.0, _HUBER / np.maximum(np.abs(r), 1e-12)) / NOISE**2
        curve = slopes.T @ (weight[:, None] * slopes) + np.eye(len(x)) / trust**2
        down = slopes.T @ (weight * r) + (x - centre) / trust**2
        moved = _step(residuals, x, centre, trust, curve, down, loss, damping)
        if moved is None:
            break
        x, r, new, damping = moved
        if loss - new < 1e-6 * (1 + loss):
            break
        loss = new
    return x


def _step(
    residuals: Residuals,
    x: Floats,
    centre: Floats,
    trust: float,
    curve: Floats,
    down: Floats,
    loss: float,
    damping: float,
) -> tuple[Floats, Floats, float, float] | None:
    """Damps until a step lowers the loss; None where none does."""
    for _ in range(10):
        step = np.linalg.solve(curve + damping * np.diag(np.diag(curve)), -down)
        to = x + np.clip(step, -2.0, 2.0)
        r = residuals(to)
        new = _loss(r, to, centre, trust)
        if new < loss:
            return to, r, new, max(damping / 3, 1e-7)
        damping *= 4
    return None


def _slopes(residuals: Residuals, x: Floats, r: Floats) -> Floats:
    columns: list[Floats] = []
    for k in range(len(x)):
        nudged = x.copy()
        nudged[k] += _STEP
        columns.append((residuals(nudged) - r) / _STEP)
    return np.stack(columns, axis=1)


def _loss(r: Floats, x: Floats, centre: Floats, trust: float) -> float:
    size = np.abs(r)
    huber = np.where(size <= _HUBER, 0.5 * size**2, _HUBER * (size - 0.5 * _HUBER))
    return float(huber.sum() / NOISE**2 + 0.5 * (((x - centre) / trust) ** 2).sum())


def _free(values: Values, constants: Mapping[str, Constant]) -> Floats:
    return np.array([c.free(values[name]) for name, c in constants.items()])


def _values(x: Floats, constants: Mapping[str, Constant]) -> dict[str, float]:
    pairs = zip(constants.items(), x, strict=True)
    return {name: c.bounded(float(v)) for (name, c), v in pairs}


def typical_of(table: PricedTable) -> dict[str, float]:
    """What to expect where nobody measured."""
    return {c.name: c.typical for c in table.constants.values()}

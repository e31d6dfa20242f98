"""One fit for each chip, engine and kind of model, each drawn to a wider one that has more rows.

    typical -> a kind of chip -> an engine on it -> a chip under the engine -> a version of it

and models with experts are drawn to the dense ones of the same place. So a chip with three rows
says what three rows can say, and otherwise follows its family.

Predictions of rows by fits that never saw them, and intervals that hold as often as they claim.
Rows are held out by configuration (the same run measured twice is never on both sides), by model or
by source.
"""

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rooflight.hardware.calibration import ANY, DENSE, EXPERTS
from rooflight.measure.published.fit import PricedTable, fit_values, typical_of
from rooflight.measure.published.replay import KERNEL, Case, CaseSet
from rooflight.plan.training.forecast.calibrated import Floats, Values

FOLDS = 10
COVERS = 0.8  # of measured values inside an interval
_ENOUGH = 10  # residuals for an interval of their own

FoldOf = Callable[[Case], str | None]  # what a case is held out with; None is always fitted
HELD_OUT: dict[str, FoldOf] = {
    "configuration": lambda case: str(_fold(case.configuration)),
    "model": lambda case: case.model,
    "source": lambda case: case.source,
}

_OF_EXPERTS = ("experts", "dispatch", "overlap_experts", "experts8", "experts4")


@dataclass(frozen=True, slots=True, order=True)
class FitScope:
    """Whose rows a fit is made of; ANY chip of a kind, under ANY engine."""

    chip_kind: str
    engine: str
    chip: str
    blocks: str

    @property
    def wider(self) -> "FitScope | None":
        """A version changed the kernels of experts on every chip, so those follow the version
        first; dense kernels follow the chip first."""
        engine, at, _ = self.engine.partition("@")
        if at and (self.blocks == DENSE or self.chip == ANY):
            return replace(self, engine=engine)
        if self.chip != ANY:
            return replace(self, chip=ANY)
        return replace(self, engine=ANY) if self.engine not in (ANY, KERNEL) else None

    @property
    def depth(self) -> int:
        """How many wider places there are."""
        return 0 if self.wider is None else 1 + self.wider.depth

    @property
    def trust(self) -> float:
        """How far, in free coordinates, a fit may move from its prior at the cost of one sigma."""
        if self.blocks == EXPERTS:
            return 0.7
        return 0.5 if self.chip != ANY else 0.7 if self.engine != ANY else 1.0


Fits = Mapping[FitScope, Values]


def places(case: Case) -> tuple[FitScope, ...]:
    """The fits that a case belongs to, nearest first. Kernels alone say nothing of whole steps."""
    found = [FitScope(case.chip_kind, case.engine, case.chip, case.blocks)]
    while wider := found[-1].wider:
        found.append(wider)
    return tuple(found)


def fit_hierarchy(asked: CaseSet, *, start: Fits | None = None) -> dict[FitScope, dict[str, float]]:
    """Fits every place, wide before narrow. `start` only saves steps towards the same optimum."""
    found: dict[FitScope, dict[str, float]] = {}
    measured_s = asked.measured_s
    for place, members in _members(asked.cases).items():
        found[place] = fit_values(
            asked.table.take(members),
            measured_s[members],
            _given(place, asked) or _prior(place, found, asked.table),
            place.trust,
            start=start.get(place) if start else None,
        )
    return found


def _members(cases: Sequence[Case]) -> dict[FitScope, np.ndarray]:
    """The cases of every place; dense before experts, wide before narrow, then by name."""
    found: dict[FitScope, np.ndarray] = {}
    for index, case in enumerate(cases):
        for place in places(case):
            found.setdefault(place, np.zeros(len(cases), dtype=np.bool_))[index] = True
    order = sorted(found, key=lambda p: (p.blocks == EXPERTS, p.depth, p))
    return {place: found[place] for place in order}


def _given(place: FitScope, asked: CaseSet) -> Values | None:
    """What was known of a place before these rows."""
    chip = place.chip_kind if place.chip == ANY else place.chip
    return asked.priors.get((chip, place.engine, place.blocks))


def _prior(place: FitScope, found: Fits, table: PricedTable) -> Values:
    """The wider fit; for experts the dense fit of the place, moved as the wider one was moved."""
    wider = _nearest(place.wider, found)
    if place.blocks == DENSE:
        return wider or typical_of(table)
    dense_place = replace(place, blocks=DENSE)
    dense = _nearest(dense_place, found) or typical_of(table)
    if wider is None:
        return dense
    beside = _nearest(dense_place.wider, found) or dense
    return _moved(table, dense, beside, wider) | {n: wider[n] for n in _OF_EXPERTS if n in wider}


def _nearest(place: FitScope | None, found: Fits) -> Values | None:
    while place and place not in found:
        place = place.wider
    return found[place] if place else None


def _moved(table: PricedTable, base: Values, start: Values, end: Values) -> dict[str, float]:
    """`base`, changed as `end` differs from `start`, in free coordinates."""
    return {
        name: c.bounded(c.free(base[name]) + c.free(end[name]) - c.free(start[name]))
        for name, c in table.constants.items()
    }


def predict(asked: CaseSet, fits: Fits) -> Floats:
    """Seconds of every case under the nearest fit, of these rows or known before, else at typical
    values."""
    known = {p: values for c in asked.cases for p in places(c) if (values := _given(p, asked))}
    fits = {**known, **fits}
    seconds = np.zeros(len(asked.cases))
    for place, members in _answering(asked.cases, fits).items():
        values = fits[place] if place else typical_of(asked.table)
        seconds[members] = asked.table.take(members).seconds(values).total
    return seconds


def _answering(cases: Sequence[Case], fits: Fits) -> dict[FitScope | None, np.ndarray]:
    found: dict[FitScope | None, np.ndarray] = {}
    for index, case in enumerate(cases):
        place = next((p for p in places(case) if p in fits), None)
        found.setdefault(place, np.zeros(len(cases), dtype=np.bool_))[index] = True
    return found


def roof_seconds(asked: CaseSet) -> Floats:
    """Seconds by the catalog alone."""
    return asked.table.seconds(asked.table.roof).total


def _fold(text: str) -> int:
    return int(hashlib.sha256(text.encode()).hexdigest(), 16) % FOLDS


@dataclass(frozen=True, slots=True)
class HeldOut:
    """What fits without a row say of it."""

    seconds: Floats
    spread: Floats  # half-width of the log interval, from other folds' residuals


def cross_validate(asked: CaseSet, by: str | FoldOf, *, start: Fits | None = None) -> HeldOut:
    """Holds out one fold, model or source at a time; what is in none, a fit of all answers."""
    fold_of = HELD_OUT[by] if isinstance(by, str) else by
    folds = [fold_of(case) for case in asked.cases]
    seconds = np.zeros(len(asked.cases))
    if None in folds:
        seconds = predict(asked, start or fit_hierarchy(asked))
    for fold in sorted({fold for fold in folds if fold is not None}):
        is_out = [f == fold for f in folds]
        fits = fit_hierarchy(asked.take([not out for out in is_out]), start=start)
        seconds[np.array(is_out)] = predict(asked.take(is_out), fits)
    residuals = np.log(asked.measured_s / seconds)
    return HeldOut(seconds, _spreads(asked.cases, folds, residuals))


def _spreads(cases: Sequence[Case], folds: Sequence[str | None], residuals: Floats) -> Floats:
    """Every row's spread from the other folds; rows of one place and fold share it."""
    known: dict[tuple[FitScope, str | None], float] = {}
    for case, fold in zip(cases, folds, strict=True):
        key = places(case)[0], fold
        if key not in known:
            known[key] = spread_of(case, cases, residuals, without=[f == fold for f in folds])
    return np.array([known[places(c)[0], f] for c, f in zip(cases, folds, strict=True)])


def spread_of(
    case: Case, cases: Sequence[Case], residuals: Floats, *, without: Sequence[bool] | None = None
) -> float:
    """The residual that 80 % of the nearest rows stay within: the chip's if they are enough.

    The k-th smallest of n, k = ceil(0.8 (n + 1)): split conformal prediction, which covers at
    least 0.8 of new rows that come from where these came from.
    """
    skip = without or [False] * len(cases)
    for place in places(case):
        near = [
            abs(float(r))
            for other, r, out in zip(cases, residuals, skip, strict=True)
            if not out and place in places(other)
        ]
        if len(near) >= _ENOUGH:
            return _quantile(near)
    every = [abs(float(r)) for r, out in zip(residuals, skip, strict=True) if not out]
    return _quantile(every or np.abs(residuals).tolist())  # one run alone: its own


def _quantile(sizes: Sequence[float]) -> float:
    ranked = sorted(sizes)
    return ranked[min(len(ranked), math.ceil(COVERS * (len(ranked) + 1))) - 1]

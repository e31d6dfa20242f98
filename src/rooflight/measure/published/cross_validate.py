"""Predictions of rows by fits that never saw them, and intervals that hold as often as they claim.

In: asked rows. Out: seconds and half-widths of every row. Rows are held out by configuration (the
same run measured twice is never on both sides), by model or by source.
"""

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from rooflight.measure.published.hierarchy import Fits, FitScope, fit_hierarchy, places, predict
from rooflight.measure.published.replay import Case, CaseSet
from rooflight.plan.training.forecast.calibrated import Floats

FOLDS = 10
COVERS = 0.8  # of measured values inside an interval
_ENOUGH = 10  # residuals for an interval of their own

FoldOf = Callable[[Case], str | None]  # what a case is held out with; None is always fitted
HELD_OUT: dict[str, FoldOf] = {
    "configuration": lambda case: str(_fold(case.configuration)),
    "model": lambda case: case.model,
    "source": lambda case: case.source,
}


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
    return _quantile(every)


def _quantile(sizes: Sequence[float]) -> float:
    ranked = sorted(sizes)
    return ranked[min(len(ranked), math.ceil(COVERS * (len(ranked) + 1))) - 1]

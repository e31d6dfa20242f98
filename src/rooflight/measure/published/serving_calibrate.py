"""Calibrations from serving rows: as those of training, with wider bars where nobody measured.

In: asked rows and a date. Out: `Calibration` records. One that stands for every chip of an engine,
or for every engine, answers where no row was: its interval is what its own values, not those of
each chip, are off by.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rooflight.hardware.calibration import ANY, Calibration
from rooflight.measure.published.calibrate import fit_calibrations
from rooflight.measure.published.cross_validate import COVERS
from rooflight.measure.published.replay import Case, CaseSet


def fit_serving(asked: CaseSet, *, made: str) -> tuple[Calibration, ...]:
    """Fits every chip, engine and kind of model that has rows, and what they are drawn to."""
    return widened(fit_calibrations(asked, made=made), asked)


def widened(calibrations: Sequence[Calibration], asked: CaseSet) -> tuple[Calibration, ...]:
    """The same with the spread of wide calibrations taken from all rows that they stand for."""
    kinds = {case.chip_kind for case in asked.cases}
    return tuple(_widened(one, asked) if one.chip in kinds else one for one in calibrations)


def _widened(one: Calibration, asked: CaseSet) -> Calibration:
    members = np.array([_stands_for(one, case) for case in asked.cases])
    said = asked.table.take(members).seconds(one.values).total
    residuals = np.abs(np.log(asked.measured_s[members] / said))
    return replace(one, spread=max(one.spread, float(np.quantile(residuals, COVERS))))


def _stands_for(one: Calibration, case: Case) -> bool:
    alike = (case.chip_kind, case.blocks) == (one.chip, one.blocks)
    return alike and one.engine in (ANY, case.engine)

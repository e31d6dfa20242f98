"""Calibrations from rows: every place's constants, with their error on rows they had not seen.

In: asked rows and a date. Out: `Calibration` records, and the text of one file a chip.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from rooflight.reconcile.cross_validate import cross_validate, spread_of
from rooflight.reconcile.hierarchy import Place, fit_hierarchy, places
from rooflight.reconcile.replay import Asked, Case
from rooflight.specs.calibration import ANY, Calibration, calibration_text


def fit_calibrations(asked: Asked, *, made: str) -> tuple[Calibration, ...]:
    """Fits every chip, engine and kind of model that has rows, and what they are drawn to."""
    fits = fit_hierarchy(asked)
    out = cross_validate(asked, "configuration", start=fits)
    residuals = np.log(asked.measured_s / out.seconds)
    errors = np.abs(out.seconds / asked.measured_s - 1)
    found: list[Calibration] = []
    for place, values in sorted(fits.items()):
        rows = [i for i, case in enumerate(asked.cases) if place in places(case)]
        found.append(
            Calibration(
                place.chip_kind if place.chip == ANY else place.chip,
                place.engine,
                place.blocks,
                values,
                len(rows),
                tuple(sorted({asked.cases[i].source for i in rows})),
                made,
                float(np.median(errors[rows])),
                float(errors[rows].mean()),
                spread_of(_stand_in(place, asked.cases[rows[0]]), asked.cases, residuals),
            )
        )
    return tuple(found)


def _stand_in(place: Place, case: Case) -> Case:
    """A case whose nearest place is this one: what a spread is looked up by."""
    return replace(case, chip=place.chip, engine=place.engine)


def calibration_files(calibrations: Sequence[Calibration]) -> Mapping[str, str]:
    """File name to text, one file for each chip or kind of chip."""
    chips: dict[str, list[Calibration]] = {}
    for one in calibrations:
        chips.setdefault(one.chip, []).append(one)
    return {f"{chip}.toml": calibration_text(ones) for chip, ones in sorted(chips.items())}

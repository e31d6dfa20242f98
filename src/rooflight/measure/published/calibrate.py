"""Calibrations from rows: every place's constants, with their error on held-out rows.

In: asked rows and a date. Out: `Calibration` records, and the text of one file per chip.

Calibrations from serving rows: as those of training, with wider bars where nobody measured. One
that stands for every chip of an engine, or for every engine, answers where no row was: its interval
is what its own values, not those of each chip, are off by.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np

from rooflight.hardware.calibration import ANY, DENSE, EXPERTS, Calibration, calibration_text
from rooflight.measure.published.hierarchy import (
    COVERS,
    FitScope,
    cross_validate,
    fit_hierarchy,
    places,
    spread_of,
)
from rooflight.measure.published.replay import Case, CaseSet
from rooflight.measure.published.validation import Replay, validate_shipped


def fit_calibrations(asked: CaseSet, *, made: str) -> tuple[Calibration, ...]:
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


def evidence_text(asked: CaseSet) -> str:
    """The index of measured runs that the planner reads, one line for each configuration.

    What is extrapolated is as far off as runs of a source that no fit had seen. Two layouts of
    one model, on as many chips of a source, are apart by what 80 % of such pairs stay within.
    """
    known = {one.id: one for one in validate_shipped(asked).of("train")}
    runs: dict[str, dict[str, object]] = {}
    alike: dict[tuple[object, ...], dict[str, tuple[str, float]]] = {}
    for case in asked.cases:
        if case.kind == "train" and case.is_whole:
            residual = math.log(case.measured_s / known[case.id].predicted_s)
            likeness = case.source, case.model, case.chip, case.engine, case.chips, case.seq
            split = json.dumps(case.degrees, sort_keys=True)
            alike.setdefault((case.blocks, *likeness), {})[case.configuration] = split, residual
            runs[case.configuration] = {
                **{name: getattr(case, name) for name in ("id", "chip")},
                "kind": case.chip_kind,
                **{
                    name: getattr(case, name)
                    for name in ("engine", "blocks", "chips", "seq", "degrees")
                },
                "reach": sorted(case.reach),
                "residual": round(residual, 4),
            }
    off = {
        blocks: round(_most([r for r in known.values() if r.blocks == blocks]), 4)
        for blocks in (DENSE, EXPERTS)
    }
    paired = {
        blocks: _paired([list(found.values()) for key, found in alike.items() if key[0] == blocks])
        for blocks in (DENSE, EXPERTS)
    }
    lines = ",\n".join(json.dumps(run) for run in runs.values())
    head = f'"extrapolated": {json.dumps(off)},\n"paired": {json.dumps(paired)}'
    return f'{{"schema": 2,\n{head},\n"runs": [\n{lines}\n]}}\n'


def _paired(groups: Sequence[Sequence[tuple[str, float]]]) -> dict[str, float]:
    """How far apart the errors of two layouts are: what 80 % of the pairs stay within, in logs."""
    pairs = [pair for group in groups for pair in combinations(group, 2)]
    apart = sorted(abs(x - y) for (one, x), (other, y) in pairs if one != other)
    return {"within": round(apart[int(COVERS * len(apart))], 4), "pairs": len(apart)}


def _most(replays: Sequence[Replay]) -> float:
    """What 80 % of the rows stay within when no fit saw their source, in logs."""
    found = [r for r in replays if r.source_out_s]
    sizes = sorted(abs(math.log(r.measured_s / (r.source_out_s or 1.0))) for r in found)
    return sizes[int(COVERS * len(sizes))]


def _stand_in(place: FitScope, case: Case) -> Case:
    """A case whose nearest place is this one: what a spread is looked up by."""
    return replace(case, chip=place.chip, engine=place.engine)


def calibration_files(calibrations: Sequence[Calibration]) -> Mapping[str, str]:
    """File name to text, one file for each chip or kind of chip."""
    chips: dict[str, list[Calibration]] = {}
    for one in calibrations:
        chips.setdefault(one.chip, []).append(one)
    return {f"{chip}.toml": calibration_text(ones) for chip, ones in sorted(chips.items())}


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

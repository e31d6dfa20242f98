"""Runs of one's own as a calibration: constants seen in traces, drawn to the measured steps.

In: three reconciled runs or more on one kind of chip. Out: `RunCalibration`. What traces show
directly (how far matmuls, passes and links are below their roofs, how much of the collectives is
hidden, what the host takes) is where the fit begins; every run is predicted by the others.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rooflight.errors import UsageError
from rooflight.hardware.calibration import (
    OWN,
    Calibration,
    calibration_constants,
    calibration_text,
    typical_values,
)
from rooflight.measure.published.fit import fit_values
from rooflight.measure.published.hierarchy import COVERS
from rooflight.measure.reconcile.run import Reconciled
from rooflight.plan.training.forecast.basis import blocks_of
from rooflight.plan.training.forecast.calibrated import Floats, PartTable, Values, part_table
from rooflight.plan.training.time.parts import training_parts

_FEWEST = 3  # so that each is predicted by two others
_TRUST = 1.0


@dataclass(frozen=True, slots=True)
class RunCalibration:
    """The constants, and each run beside its prediction by the others."""

    calibration: Calibration
    folders: tuple[Path, ...]
    measured_s: tuple[float, ...]
    predicted_s: tuple[float, ...]


def calibrate_runs(runs: Sequence[Reconciled], *, made: str) -> RunCalibration:
    """Fits constants to runs on one chip, all of models with experts or all without."""
    chips = sorted({run.mesh.slice.chip.name for run in runs})
    kinds = sorted({blocks_of(run.training_run.graph) for run in runs})
    if len(runs) < _FEWEST or len(chips) > 1 or len(kinds) > 1:
        raise UsageError(
            f"{len(runs)} runs on {', '.join(chips)} of {', '.join(kinds)} models: a calibration"
            f" needs {_FEWEST} or more of one kind, to predict each by the others",
            hint="give more runs, or leave out --save",
        )
    table = part_table([training_parts(run.training_run) for run in runs])
    measured = np.array([run.gap.measured_s for run in runs])
    prior = seen_values(runs)
    values, said, off = fit_and_hold_out(table, measured, prior, _TRUST)
    source = ("runs of one's own",)
    one = Calibration(chips[0], OWN, kinds[0], values, len(runs), source, made, *off)
    folders = tuple(run.folder for run in runs)
    return RunCalibration(one, folders, tuple(measured.tolist()), tuple(said.tolist()))


def fit_and_hold_out(
    table: PartTable, measured_s: Floats, prior: Values, trust: float
) -> tuple[dict[str, float], Floats, tuple[float, float, float]]:
    """Constants fitted to all runs, and the seconds of each by a fit that did not see it.

    The errors of these seconds are the median, the mean and the spread of a `Calibration`.
    """

    def predicted(out: int) -> float:
        others = np.arange(len(measured_s)) != out
        values = fit_values(table.take(others), measured_s[others], prior, trust)
        return float(table.take(~others).seconds(values).total[0])

    said = np.array([predicted(out) for out in range(len(measured_s))])
    errors, logs = np.abs(said / measured_s - 1), np.abs(np.log(said / measured_s))
    off = float(np.median(errors)), float(errors.mean()), float(np.quantile(logs, COVERS))
    return fit_values(table, measured_s, prior, trust), said, off


def calibration_file(fitted: RunCalibration) -> tuple[str, str]:
    """The name and the text of a file for ROOFLIGHT_CALIBRATIONS."""
    return f"{fitted.calibration.chip}.toml", calibration_text([fitted.calibration])


def seen_values(runs: Sequence[Reconciled]) -> dict[str, float]:
    """The constants as the traces show them, medians over the runs; the rest as is typical."""
    seen = {
        "matmul_bf16": _median(runs, lambda r: _over(r.compiled.matmuls_s, r.traced.matmuls_s)),
        "memory": _median(runs, lambda r: _over(r.compiled.passes_s, r.traced.passes_s)),
        "near_links": _median(runs, lambda r: _over(r.compiled.collectives_s, _flown(r))),
        "overlap_weights": _median(runs, lambda r: _over(r.traced.hidden_s, _flown(r))),
        "overlap_activations": _median(runs, lambda r: _over(r.traced.hidden_s, _flown(r))),
        "step_s": _median(runs, lambda r: sum(r.traced.gaps_s.values()) + r.traced.unknown_s),
    }
    constants = calibration_constants()
    known = {
        name: min(max(value, constants[name].low), constants[name].high)
        for name, value in seen.items()
        if value is not None
    }
    return typical_values() | known


def _flown(run: Reconciled) -> float:
    return run.traced.exposed_s + run.traced.hidden_s


def _over(part: float | None, whole: float) -> float | None:
    return None if part is None or not whole else part / whole


def _median(runs: Sequence[Reconciled], of: Callable[[Reconciled], float | None]) -> float | None:
    found = [value for run in runs if (value := of(run)) is not None]
    return statistics.median(found) if found else None

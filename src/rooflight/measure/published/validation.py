"""`Validation`: every row beside what was said of it, as a file; and the errors by group.

In: asked rows. Out: records. `validate_shipped` holds rows out of the fit that answers them, and
its result ships as `held_out.json`; `validate_rows` answers any file with the shipped calibrations.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any  # of fields by name

import numpy as np

from rooflight.hardware.calibration import Calibration, load_calibration
from rooflight.measure.published.hierarchy import cross_validate, fit_hierarchy, roof_seconds
from rooflight.measure.published.replay import Case, CaseSet, RefusedRow
from rooflight.measure.published.rows import FOLDER

HELD_OUT_FILE = FOLDER / "held_out.json"


@dataclass(frozen=True, slots=True)
class Replay:
    """One row: what it measured, and what was said without having seen it."""

    id: str
    kind: str
    source: str
    chip: str
    family: str
    engine: str
    blocks: str
    measured_s: float
    predicted_s: float
    spread: float  # half-width of the log of the 80 % interval
    roof_s: float  # by the catalog alone
    model_out_s: float | None = None  # by a fit that saw no row of its model
    source_out_s: float | None = None  # nor of its source
    is_calibrated: bool = True
    assumed: tuple[str, ...] = ()

    @property
    def error(self) -> float:
        """Predicted less measured, as a part of the measured."""
        return self.predicted_s / self.measured_s - 1

    @property
    def is_inside(self) -> bool:
        return abs(float(np.log(self.measured_s / self.predicted_s))) <= self.spread


@dataclass(frozen=True, slots=True)
class Validation:
    """All rows of a file, and those that were refused."""

    replays: tuple[Replay, ...]
    refusals: tuple[RefusedRow, ...]

    @property
    def coverage(self) -> float:
        return len(self.replays) / max(1, len(self.replays) + len(self.refusals))

    def of(self, kind: str) -> tuple[Replay, ...]:
        return tuple(r for r in self.replays if r.kind == kind)


def joined_validations(found: Sequence[Validation]) -> Validation:
    """The rows of several files."""
    replays = tuple(r for one in found for r in one.replays)
    return Validation(replays, tuple(r for one in found for r in one.refusals))


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Errors of a group of rows, all as parts of the measured."""

    group: str
    rows: int
    mape: float
    median: float
    p90: float
    bias: float
    inside: float  # part of the rows inside their interval
    roof_mape: float
    model_out_mape: float | None
    source_out_mape: float | None


GROUPS: Mapping[str, Callable[[Replay], str]] = {
    "source": lambda r: r.source,
    "chip": lambda r: f"{r.chip} {r.blocks}",
    "family": lambda r: r.family,
    "blocks": lambda r: r.blocks,
    "engine": lambda r: f"{r.engine} {r.blocks}",
}


def accuracies(replays: Sequence[Replay], by: str) -> tuple[Accuracy, ...]:
    """The errors of each group, by name."""
    groups: dict[str, list[Replay]] = {}
    for replay in replays:
        groups.setdefault(GROUPS[by](replay), []).append(replay)
    return tuple(accuracy(name, groups[name]) for name in sorted(groups))


def accuracy(group: str, replays: Sequence[Replay]) -> Accuracy:
    """Mean, median and 90th percentile of the absolute errors, and the mean error."""
    errors = np.array([r.error for r in replays])
    return Accuracy(
        group,
        len(replays),
        float(np.abs(errors).mean()),
        float(np.median(np.abs(errors))),
        float(np.quantile(np.abs(errors), 0.9)),
        float(errors.mean()),
        float(np.mean([r.is_inside for r in replays])),
        _mape((r.roof_s, r.measured_s) for r in replays) or 0.0,
        _mape((r.model_out_s, r.measured_s) for r in replays),
        _mape((r.source_out_s, r.measured_s) for r in replays),
    )


def _mape(pairs: Iterable[tuple[float | None, float]]) -> float | None:
    errors = [abs(said / measured - 1) for said, measured in pairs if said is not None]
    return float(np.mean(errors)) if errors else None


def validate_shipped(asked: CaseSet) -> Validation:
    """Holds rows out by configuration, by model and by source; each answered by the others."""
    start = fit_hierarchy(asked)
    out = {
        by: cross_validate(asked, by, start=start) for by in ("configuration", "model", "source")
    }
    roofs = roof_seconds(asked)
    own = out["configuration"]
    return Validation(
        tuple(
            _replay(
                case,
                predicted_s=own.seconds[i],
                spread=own.spread[i],
                roof_s=roofs[i],
                model_out_s=out["model"].seconds[i],
                source_out_s=out["source"].seconds[i],
            )
            for i, case in enumerate(asked.cases)
        ),
        asked.refusals,
    )


Find = Callable[[str, str, str, str], Calibration | None]


def validate_rows(asked: CaseSet, find: Find = load_calibration) -> Validation:
    """Answers every row with the calibration that ships for its chip and engine; nothing is fitted.

    A row without any is answered by the roofs, and its interval is as wide as those are wrong.
    """
    used = [find(c.chip, c.chip_kind, c.engine, c.blocks) for c in asked.cases]
    roofs = roof_seconds(asked)
    seconds = roofs.copy()
    for one in {id(c): c for c in used if c}.values():
        members = np.array([c is one for c in used])
        seconds[members] = asked.table.take(members).seconds(one.values).total
    return Validation(
        tuple(
            _replay(
                case,
                predicted_s=seconds[i],
                spread=one.spread if one else uncalibrated_spread(),
                roof_s=roofs[i],
                is_calibrated=one is not None,
            )
            for i, (case, one) in enumerate(zip(asked.cases, used, strict=True))
        ),
        asked.refusals,
    )


def uncalibrated_spread() -> float:
    """What 80 % of the shipped rows stay within when the catalog alone answers."""
    rows = shipped_validation().of("train")
    sizes = sorted(abs(float(np.log(r.measured_s / r.roof_s))) for r in rows)
    return sizes[int(0.8 * len(sizes))]


_OF_CASE = ("id", "kind", "source", "chip", "family", "engine", "blocks", "measured_s", "assumed")


def _replay(case: Case, *, is_calibrated: bool = True, **seconds: float) -> Replay:
    """A row beside what was said of it."""
    fields: dict[str, Any] = {name: getattr(case, name) for name in _OF_CASE}
    fields |= {name: float(value) for name, value in seconds.items()}
    return Replay(**fields, is_calibrated=is_calibrated)


@lru_cache(maxsize=1)
def shipped_validation(path: Path = HELD_OUT_FILE) -> Validation:
    """The held-out errors of the shipped rows, as they were when the file was written."""
    document = json.loads(path.read_text(encoding="utf-8"))
    return Validation(
        tuple(
            Replay(**fields | {"assumed": tuple(fields.get("assumed", ()))})
            for fields in document["replays"]
        ),
        tuple(RefusedRow(**fields) for fields in document["refusals"]),
    )

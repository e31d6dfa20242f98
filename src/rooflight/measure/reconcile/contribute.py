"""A run of one's own as a row of measurements, and how it moves the constants.

In: a `TrainingRun` and its logged steps. Out: a row that `calibrate` and `validate --rows` read,
and `Moved`: what was forecast, and the constants before and after a fit that saw this row too.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any  # fields of a row

from rooflight.errors import UsageError
from rooflight.hardware.calibration import load_calibration, measured_names, shipped_calibrations
from rooflight.measure.published.hierarchy import fit_hierarchy, places, predict
from rooflight.measure.published.replay import CaseSet, ask_rows
from rooflight.measure.published.rows import Fields, PublishedFile, PublishedRun, read_rows
from rooflight.measure.published.validation import Replay, validate_rows
from rooflight.measure.reconcile.logs import LoggedSteps
from rooflight.models.presets import find_preset
from rooflight.models.spec import ModelSpec
from rooflight.plan.file.codec import encode
from rooflight.plan.training.forecast.evidence import degrees_of
from rooflight.plan.training.time.parts import TrainingRun

_LEAST = 0.005  # that a constant moves by, to be told


@dataclass(frozen=True, slots=True)
class Contribution:
    """A row, its model where no preset is the same, and where it comes from."""

    row: Fields
    model: Fields | None
    source: Fields

    @property
    def file(self) -> PublishedFile:
        """The row as a file of its own."""
        name, source = str(self.row["model"]), str(self.row["source"])
        models = {name: self.model} if self.model else {}
        return PublishedFile({source: self.source}, models, (PublishedRun(self.row),))


@dataclass(frozen=True, slots=True)
class Moved:
    """What the shipped constants say of a row, and what a fit that saw it does."""

    said: Replay
    after_s: float
    moves: tuple[tuple[str, float, float], ...]  # a constant, before and after
    place: str  # whose constants


def contribution(
    run: TrainingRun,
    model: ModelSpec,
    engine: str,
    steps: LoggedSteps,
    *,
    name: str,
    date: str,
    assumed: Sequence[str] = (),
) -> Contribution:
    """A run as a row; `assumed` is what nobody said of it.

    Raises `UsageError` where the log is of another batch.
    """
    if steps.batch not in (None, run.batch):
        raise UsageError(
            f"the log has {steps.batch} sequences per step, the layout {run.batch}",
            hint="give the batch that ran",
        )
    on = run.mesh.slice
    row: dict[str, Any] = {
        "id": name,
        "kind": "train",
        "source": "own",
        "engine": engine,
        "model": model.name,
        "chip": (*measured_names(on.chip.name), on.chip.name)[0],
        "chips": on.num_chips,
        "layout": _layout(run),
        "placed": {"on": str(on), "mesh": str(run.mesh), "layout": run.layout.text},
        "batch": {
            "global_seqs": run.batch,
            "seq_len": run.seq,
            "num_microbatches": run.micro.count,
        },
        "dtype": {"compute": run.compute.name},
        "remat": run.remat.name,
        "measured": {
            "step_s": round(steps.median_s, 9),
            "n": len(steps.seconds),
            "spread": round(steps.spread, 4),
        },
        "note": f"median of the steps in the log of {steps.program}, the first"
        f" {steps.left_out} left out",
    }
    if assumed:
        row["assumed"] = list(assumed)
    source = {"program": steps.program, "sha256": steps.sha256, "date": date}
    spec = None if find_preset(model.name) == model else {"spec": encode(model)}
    return Contribution(row, spec, source)


def _layout(run: TrainingRun) -> dict[str, int]:
    """Degrees as rows have them: data ways in all, and how many of them split the weights."""
    degrees = degrees_of(run.layout, run.mesh)
    data = degrees.get("dp", 1) * degrees.get("fsdp", 1)
    return degrees | {"dp": data, "vp": run.micro.virtual}


def moved_by(given: Contribution) -> Moved:
    """Forecasts the row with what ships, then fits again with it; raises where it is refused."""
    asked = ask_rows(given.file)
    if asked.refusals:
        raise UsageError(asked.refusals[0].because, hint="give what ran, or mend the row by hand")
    known = shipped_calibrations()
    priors = {place: one.values for place, one in known.items()}
    asked = CaseSet(asked.cases, (), asked.table, priors)
    case = asked.cases[0]
    fits = fit_hierarchy(asked)
    place = places(case)[0]
    after = fits[place]
    one = load_calibration(case.chip, case.chip_kind, case.engine, case.blocks)
    before = one.values if one else {name: c.typical for name, c in asked.table.constants.items()}
    moves = tuple(
        (name, before[name], value)
        for name, value in after.items()
        if name in before and abs(value - before[name]) > _LEAST * before[name]
    )
    said = validate_rows(asked).replays[0]
    after_s = float(predict(asked, fits)[0])
    return Moved(said, after_s, moves, f"{case.chip} under {case.engine}, {case.blocks}")


def with_row(path: Path, given: Contribution) -> str:
    """The text of a file of rows with one more; the same log again replaces its row."""
    old = read_rows(path) if path.is_file() else PublishedFile({}, {}, ())
    source, name = str(given.row["source"]), str(given.row["id"])
    known = old.sources.get(source, {}).get(name, {}).get("sha256")
    if name in (one.id for one in old.runs) and known != given.source["sha256"]:
        raise UsageError(f"{path} has another run called {name}", hint="add --name NAME")
    runs = [one.fields for one in old.runs if one.id != name]
    sources = {**old.sources, source: {**old.sources.get(source, {}), name: given.source}}
    models = {**old.models, **given.file.models}
    document = {"schema": 1, "sources": sources, "models": models, "runs": [*runs, given.row]}
    return json.dumps(document, indent=1) + "\n"

"""A run of one's own as a row of measurements, and how it moves the constants.

In: a `TrainingRun` and its logged steps. Out: a row that `calibrate` and `validate --rows` read,
and `Moved`: what was forecast, and the constants before and after a fit that saw this row too.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any  # fields of a row

from rooflight.errors import UsageError
from rooflight.hardware.calibration import load_calibration, measured_names, shipped_calibrations
from rooflight.measure.published.hierarchy import fit_hierarchy, places, predict
from rooflight.measure.published.model_sizes import sized_model
from rooflight.measure.published.replay import CaseSet, ask_rows
from rooflight.measure.published.rows import Fields, PublishedFile, PublishedRun, read_rows
from rooflight.measure.published.validation import Replay, validate_rows
from rooflight.measure.reconcile.logs import LoggedSteps
from rooflight.models.presets import find_preset
from rooflight.models.spec import ModelSpec, Moe
from rooflight.plan.training.forecast.evidence import degrees_of
from rooflight.plan.training.time.parts import TrainingRun

_LEAST = 0.005  # that a constant moves by, to be told


@dataclass(frozen=True, slots=True)
class Contribution:
    """A row, the sizes of its model where no preset has them, and where it comes from."""

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
    run: TrainingRun, model: ModelSpec, engine: str, steps: LoggedSteps, *, name: str, date: str
) -> Contribution:
    """A run as a row.

    Raises `UsageError` where the log is of another batch, or where a row cannot say the model.
    """
    if steps.batch not in (None, run.batch):
        raise UsageError(
            f"the log has {steps.batch} sequences per step, the layout {run.batch}",
            hint="give the batch that ran",
        )
    on = run.mesh.slice
    row = {
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
    source = {"program": steps.program, "sha256": steps.sha256, "date": date}
    return Contribution(row, _sizes(model), source)


def _layout(run: TrainingRun) -> dict[str, int]:
    """Degrees as rows have them: data ways in all, and how many of them split the weights."""
    degrees = degrees_of(run.layout, run.mesh)
    data = degrees.get("dp", 1) * degrees.get("fsdp", 1)
    return degrees | {"dp": data, "vp": run.micro.virtual}


def _sizes(model: ModelSpec) -> Fields | None:
    """Sizes as `models:` has them; nothing for a preset."""
    known = find_preset(model.name)
    if known is not None and known.layers == model.layers:
        return None
    last, attention = model.layer_blocks[-1], model.layer_blocks[-1].attention
    found = dict[str, Any](
        layers=model.num_layers, d_model=model.d_model, vocab=model.vocab, tied=model.is_tied
    )
    found |= dict[str, Any](
        heads=attention.num_heads, kv_heads=attention.num_kv_heads, head_dim=attention.head_dim
    )
    if latent := attention.latent:
        found |= {"q_lora": latent.query_rank or 0, "kv_lora": latent.kv_rank}
        found |= {"qk_rope": latent.rope_dim, "v_head": latent.value_dim}
        found |= {"qk_nope": attention.head_dim}
    mlp = last.mlp
    if isinstance(mlp, Moe):
        dense = [b.mlp for b in model.layer_blocks if not isinstance(b.mlp, Moe)]
        width, shared = mlp.expert.width, mlp.shared.width if mlp.shared else 0
        found |= dict[str, Any](experts=mlp.num_experts, topk=mlp.experts_per_token)
        found |= {"moe_d_ff": width, "shared_d_ff": shared, "gated_mlp": mlp.expert.is_gated}
        found |= {"dense_layers": len(dense), "d_ff": dense[0].width if dense else width}
    else:
        found |= {"d_ff": mlp.width, "gated_mlp": mlp.is_gated}
    read = sized_model(PublishedRun({"model": model.name}), {model.name: found}).spec
    if _shape(read) != _shape(model):
        raise UsageError(
            f"a row cannot say the layers of {model.name}", hint="give a preset, `rooflight model`"
        )
    return found


def _shape(model: ModelSpec) -> list[object]:
    """What a row says of every layer."""
    return [
        (a.num_heads, a.num_kv_heads, a.head_dim, a.window, a.latent, _widths(b.mlp))
        for b in model.layer_blocks
        for a in (b.attention,)
    ]


def _widths(mlp: Any) -> tuple[object, ...]:
    if not isinstance(mlp, Moe):
        return mlp.width, mlp.is_gated
    shared = mlp.shared.width if mlp.shared else 0
    return (mlp.num_experts, mlp.experts_per_token, *_widths(mlp.expert), shared)


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
    """The text of a file of rows with one more; a row of the same name is replaced."""
    old = read_rows(path) if path.is_file() else PublishedFile({}, {}, ())
    runs = [one.fields for one in old.runs if one.id != given.row["id"]]
    source, name = str(given.row["source"]), str(given.row["id"])
    sources = {**old.sources, source: {**old.sources.get(source, {}), name: given.source}}
    models = {**old.models, **given.file.models}
    document = {"schema": 1, "sources": sources, "models": models, "runs": [*runs, given.row]}
    return json.dumps(document, indent=1) + "\n"

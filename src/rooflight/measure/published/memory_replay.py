"""Rows of peak memory replayed: what the planner counts for the chip that was read, beside it.

In: rows of kind `memory`, as Megatron-LM's own trainer ran them. Out: `MemoryReplay`s; or a
`RefusedRow` with a reason. The last rank wrote the figures, so they are of the last stage.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import gcd
from statistics import fmean, median
from typing import Any  # of sizes by name

from rooflight.dtypes import DTYPES
from rooflight.errors import RooflightError, UsageError
from rooflight.measure.published.degrees import measured_chip
from rooflight.measure.published.model_sizes import sized_model
from rooflight.measure.published.replay import RefusedRow
from rooflight.measure.published.rows import (
    FOLDER,
    Fields,
    PublishedFile,
    PublishedRun,
    read_rows,
)
from rooflight.models.graph.build import model_graph
from rooflight.models.graph.ops import Graph
from rooflight.models.layout.rules import parse_layout
from rooflight.models.spec import Block, Mlp, ModelSpec, Moe, Norm, repeats
from rooflight.plan.training.memory.count import Memory, memory_by_stage
from rooflight.plan.training.memory.framework import Framework, parse_framework
from rooflight.plan.training.memory.job import RECIPES, Job, Microbatching, Zero
from rooflight.plan.training.memory.remat import REMATS, Remat

KIND = "memory"
# What a run shards beside what the layout splits: of `optim_grads_params` that is all but context.
_ZEROS: Mapping[str, Zero] = {"optim": 1, "optim_grads": 2, "optim_grads_params": 1}
_MODULES = {  # that run again in the backward pass: ops, or groups of them
    "core_attn": ("attention.scores", "attention.rope_scores", "attention.softmax"),
    "layernorm": ("attention_in_norm", "mlp_in_norm"),
    "mla_up_proj": (
        *("attention.q", "attention.q_rope", "attention.k", "attention.v"),
        *("attention_q_norm", "attention_kv_norm"),
    ),
    "mlp": ("mlp.gate", "mlp.in", "mlp.act"),
    "moe": ("router", "experts", "shared"),
    "moe_act": ("experts.act",),
    "shared_experts": ("shared",),
}
GIB = 2**30
LARGE_GIB = 8  # below it one buffer is a percent
_FREQUENCY = re.compile(r"\(\[0\]\*(\d+)\+\[1\]\*\d+\)")  # dense layers first, then experts


@dataclass(frozen=True, slots=True)
class MemoryReplay:
    """A run that was measured, and what the planner says of it."""

    row: PublishedRun
    job: Job
    measured_bytes: float
    found: Memory

    @property
    def error(self) -> float:
        """Counted less measured, as a part of the measured."""
        return self.found.total_bytes / self.measured_bytes - 1

    @property
    def is_large(self) -> bool:
        return self.measured_bytes >= LARGE_GIB * GIB

    @property
    def is_inside(self) -> bool:
        """Whether it lies where nine of ten runs of its framework would."""
        if not self.found.spread:
            return False
        low, high = self.found.spread.between(self.found.total_bytes)
        return low <= self.measured_bytes <= high


@dataclass(frozen=True, slots=True)
class MemoryValidation:
    """Every row of peak memory of a file beside what was said of it, and those refused."""

    replays: tuple[MemoryReplay, ...] = ()
    refusals: tuple[RefusedRow, ...] = ()


def validate_memory(rows: PublishedFile) -> MemoryValidation:
    """Counts every row of peak memory as its own framework and settings have it."""
    replays: list[MemoryReplay] = []
    refusals: list[RefusedRow] = []
    for row in rows.of((KIND,)):
        try:
            replays.append(replay_memory(row, rows.models))
        except RooflightError as error:
            refusals.append(RefusedRow(row.id, row.source, str(error)))
        except (AttributeError, KeyError, TypeError, ValueError) as error:  # of another type
            because = f"the row cannot be read: {error!r}"
            refusals.append(RefusedRow(row.id, row.source, because))
    return MemoryValidation(tuple(replays), tuple(refusals))


@lru_cache(maxsize=1)
def shipped_memory_rows() -> PublishedFile:
    """The published peaks that ship with the package."""
    return read_rows(FOLDER / "memory_runs.json")


def replay_memory(row: PublishedRun, models: Mapping[str, Fields]) -> MemoryReplay:
    """Counts one row; raises `UsageError` for one that cannot be asked."""
    job = memory_job(row, models)
    if "mem_gib" not in row.measured:
        raise UsageError("no peak was measured", hint="add mem_gib: to measured:")
    peak = float(row.measured["mem_gib"]) * GIB
    return MemoryReplay(row, job, peak, memory_by_stage(job)[-1])


@dataclass(frozen=True, slots=True)
class MemoryAccuracy:
    """Errors of a group of rows, as parts of the measured peaks."""

    group: str
    rows: int
    median: float
    mape: float
    worst: float  # the largest, with its sign
    bias: float
    inside: float  # part of the rows inside their 90 % interval
    least_chance: float | None  # to fit its chip, of any row: each of them ran


FEATURES: Mapping[str, Callable[[MemoryReplay], bool]] = {
    f"{LARGE_GIB} GiB or more": lambda r: r.is_large,
    f"less than {LARGE_GIB} GiB": lambda r: not r.is_large,
    "dense": lambda r: "E" not in r.job.graph.sizes,
    "experts": lambda r: "E" in r.job.graph.sizes,
    "pipeline stages": lambda r: r.job.num_stages > 1,
    "interleaved": lambda r: r.job.micro.virtual > 1,
    "optimizer split": lambda r: r.job.zero > 0,
    "weights split": lambda r: "fsdp=" in r.job.layout.text,
    "recomputed": lambda r: r.job.remat.name != "none",
    "scores saved": lambda r: bool(r.job.framework.scores),
    "fp8": lambda r: r.row.table("dtype").get("compute") == "fp8",
}


def memory_accuracies(replays: Sequence[MemoryReplay]) -> tuple[MemoryAccuracy, ...]:
    """By feature, a row in every group whose feature it has; then by chip, then all."""
    groups = {name: [r for r in replays if has(r)] for name, has in FEATURES.items()}
    for replay in replays:
        groups.setdefault(replay.row.chip, []).append(replay)
    groups["all"] = list(replays)
    return tuple(_accuracy(name, found) for name, found in groups.items() if found)


def _accuracy(name: str, found: Sequence[MemoryReplay]) -> MemoryAccuracy:
    errors = [replay.error for replay in found]
    sizes = list(map(abs, errors))
    chances = [replay.found.chance for replay in found if replay.found.chance is not None]
    return MemoryAccuracy(
        name,
        len(found),
        median(sizes),
        fmean(sizes),
        max(errors, key=abs),
        fmean(errors),
        fmean(replay.is_inside for replay in found),
        min(chances, default=None),
    )


# A row of Megatron-LM as a job.


def memory_job(row: PublishedRun, models: Mapping[str, Fields]) -> Job:
    """The training of a row. Copies of the optimizer are as many runs side by side: one counts."""
    batch, flags = row.table("batch"), row.table("flags")
    copies = int(flags.get("dist_optimizer_instances", 1))
    degrees = _degrees(row, copies)
    graph = model_graph(_model(row, models, int(batch["seq_len"])))
    layout, axes = _layout(degrees, graph, fsdp=flags.get("fsdp") == "optim_grads_params")
    interleaved = degrees["vp"] > 1
    return Job(
        graph,
        parse_layout(layout),
        axes,
        measured_chip(row.chip).chip,
        batch=int(batch["global_seqs"]) // copies,
        seq=int(batch["seq_len"]),
        recipe=RECIPES["18"],
        remat=_remat(str(row.fields.get("remat", "none"))),
        zero=_zero(flags),
        micro=Microbatching(
            int(batch["grad_accum"]),
            "interleaved" if interleaved else "1f1b",
            degrees["vp"],
            _chunks(row, degrees, models),
        ),
        framework=_framework(row, models, degrees["pp"]),
    )


def _degrees(row: PublishedRun, copies: int) -> dict[str, int]:
    layout = row.table("layout")
    found = {name: int(layout.get(name, 1)) for name in ("tp", "dp", "cp", "pp", "vp", "ep")}
    found["etp"] = int(layout.get("etp", found["tp"]))
    if found["dp"] % copies or found["tp"] % found["etp"]:
        raise UsageError(
            f"{copies} copies of the optimizer and {found['etp']} ways of experts' tensors do not"
            f" divide {found['dp']} and {found['tp']}",
            hint="check layout: and flags:",
        )
    return found | {"dp": found["dp"] // copies, "sp": int(bool(layout.get("sp")))}


def _zero(flags: Fields) -> Zero:
    kind = flags.get("fsdp")
    if not kind:
        return 1 if flags.get("dist_optimizer") else 0
    if kind not in _ZEROS:
        raise UsageError(f"sharding {kind!r} is not known", hint=f"use {', '.join(_ZEROS)}")
    return _ZEROS[kind]


def _remat(stated: str) -> Remat:
    """By layers, or by the modules that `--recompute-modules` names."""
    how, *modules = stated.replace(",", " ").split() or ["none"]
    if stated in ("full", "full uniform 1"):
        return REMATS["block"]
    unknown = [name for name in modules if name not in _MODULES]
    if how not in ("none", "selective") or unknown:
        known = f"none, full uniform 1 or selective with {', '.join(_MODULES)}"
        raise UsageError(f"recomputation {stated!r} is not counted", hint=f"use {known}")
    if how == "none":
        return REMATS["none"]
    again = tuple(f"{part}." for name in modules or ("core_attn",) for part in _MODULES[name])
    what = "keep all but some modules"
    return Remat(stated, what, lambda op: not f"{op.name}.".startswith(again))


def _framework(row: PublishedRun, models: Mapping[str, Fields], stages: int) -> Framework:
    flags, sizes = row.table("flags"), _sizes(row, models)
    is_local = flags.get("impl") == "local"
    asked = {
        "compiled-loss": flags.get("ce_fusion"),
        "unfused-loss": not flags.get("ce_fusion"),
        "unfused-attention": is_local or flags.get("attention") == "unfused",
        "dropout": any(flags.get("dropout", ())[1:]),
        "unfused-gradients": flags.get("no_grad_accum_fusion"),
        "deterministic": flags.get("deterministic"),
        "single-experts": not flags.get("grouped_gemm"),
        "tp-overlap": flags.get("tp_overlap"),
        "fp8": row.table("dtype").get("compute") == "fp8",
    }
    found = parse_framework(
        "+".join(("megatron", *(name for name, is_on in asked.items() if is_on)))
    )
    more = [DTYPES["f32"]] * sizes.get("mtp_layers", 0)  # its softmax waits for the main loss
    # Gradients of the head that are put off wait for the last microbatches of all stages.
    more += [DTYPES["bf16"]] * (stages if flags.get("defer_embed_wgrad") else 0)
    return replace(found, loss=(*found.loss, *more))


def _chunks(row: PublishedRun, degrees: Fields, models: Mapping[str, Fields]) -> tuple[int, ...]:
    """Layers of every chunk where a run does not cut them evenly."""
    layout, sizes, stages = row.table("layout"), _sizes(row, models), degrees["pp"]
    layers, chunks = int(sizes["layers"]), degrees["pp"] * degrees["vp"]
    if "first_stage_layers" in layout:
        first, last = int(layout["first_stage_layers"]), int(layout["last_stage_layers"])
        return (first, *[(layers - first - last) // (stages - 2)] * (stages - 2), last)
    if row.table("flags").get("embed_as_pipeline_layer"):
        each = (layers + 2) // chunks
        return (each - 1, *[each] * (chunks - 2), each - 1)
    if stages > 1 and sizes.get("mtp_layers"):
        return (*[layers // chunks] * (chunks - 1), layers // chunks + int(sizes["mtp_layers"]))
    return ()


def _layout(degrees: Fields, graph: Graph, *, fsdp: bool) -> tuple[str, dict[str, int]]:
    """Experts take what tensor parallelism leaves them, then of the data and context axes."""
    left = degrees["ep"]
    axes: dict[str, int] = {}
    experts = ""
    parts: list[str] = []
    for scheme, degree, most, inner, outer in (
        ("sp" if degrees["sp"] else "mp", degrees["tp"], degrees["tp"] // degrees["etp"], "A", "B"),
        ("fsdp" if fsdp else "dp", degrees["dp"], degrees["dp"], "C", "D"),
        ("cp", degrees["cp"], degrees["cp"], "E", "F"),
    ):
        shared = gcd(left, most)
        axes |= {inner: shared, outer: degree // shared}
        parts.append(f"{scheme}={inner}{outer}")
        experts += inner
        left //= shared
    if left > 1:
        raise UsageError(f"{degrees['ep']} ways of experts divide no axes", hint="check ep:")
    parts += [f"ep={experts}"] if "E" in graph.sizes else []
    if degrees["pp"] > 1:
        axes["P"] = degrees["pp"]
        parts.append("pp=P")
    return ",".join(parts), axes


def _sizes(row: PublishedRun, models: Mapping[str, Fields]) -> dict[str, Any]:
    return {**models.get(row.model, {}), **row.table("dims")}


def _model(row: PublishedRun, models: Mapping[str, Fields], seq: int) -> ModelSpec:
    """Sizes as the trainer names them. A layer that predicts a second token is one more layer."""
    sizes = _sizes(row, models)
    dense = _FREQUENCY.fullmatch(str(sizes.get("moe_layer_freq", "([0]*0+[1]*1)")))
    if not dense:
        raise UsageError(
            f"layers of experts as {sizes['moe_layer_freq']!r} are not understood",
            hint="use ([0]*dense+[1]*experts)",
        )
    dims = sizes | {
        "layers": int(sizes["layers"]) + int(sizes.get("mtp_layers", 0)),
        "dense_layers": int(dense[1]),
        "shared_d_ff": int(sizes.get("shared_expert_d_ff", 0)),
    }
    spec = sized_model(PublishedRun({**row.fields, "dims": dims}), models).spec
    blocks = [_biased(block) if sizes.get("bias") else block for block in spec.layer_blocks]
    is_layer_norm = sizes.get("norm") == "layer"
    return replace(
        spec,
        layers=repeats(blocks),
        norm=Norm("layer" if is_layer_norm else "rms", has_bias=is_layer_norm),
        num_positions=seq if sizes.get("pos") == "learned" else 0,
    )


def _biased(block: Block) -> Block:
    attention = replace(block.attention, qkv_bias=block.attention.latent is None, out_bias=True)
    return replace(block, attention=attention, mlp=_biased_mlp(block.mlp))


def _biased_mlp(mlp: Mlp | Moe) -> Mlp | Moe:
    if isinstance(mlp, Mlp):
        return replace(mlp, has_bias=True)
    shared = replace(mlp.shared, has_bias=True) if mlp.shared else None
    return replace(mlp, expert=replace(mlp.expert, has_bias=True), shared=shared)

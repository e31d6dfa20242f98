"""A row of training as a question to the planner: what ran, and the seconds it took.

In: a `PublishedRun` and the models of its file. Out: a `ReplayQuestion`; or a `UsageError` that
says why the row cannot be asked. What a source does not say is assumed, and listed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from rooflight.dtypes import DTYPES, Dtype
from rooflight.errors import UsageError
from rooflight.hardware.mesh import parse_mesh
from rooflight.hardware.slice import parse_slice
from rooflight.measure.published.degrees import (
    Degrees,
    measured_chip,
    mesh_axes,
    place_axes,
    read_degrees,
    slice_of,
)
from rooflight.measure.published.model_sizes import sized_model
from rooflight.measure.published.rows import Fields, PublishedRun, read_facts
from rooflight.models.graph.build import model_graph
from rooflight.models.graph.ops import Graph
from rooflight.models.layout.rules import parse_layout
from rooflight.models.spec import Moe
from rooflight.plan.training.memory.job import Microbatching
from rooflight.plan.training.memory.remat import REMATS, Remat, parse_remat
from rooflight.plan.training.time.parts import TrainingRun

_DTYPES = {"fp16": "f16", "fp8-mx": "mxfp8", "fp8_mx": "mxfp8"}
# The names that MaxText gives to what a layer may keep.
_KEPT: Mapping[str, tuple[str, ...]] = {
    "query_proj": ("q",),
    "key_proj": ("k",),
    "value_proj": ("v",),
    "qkv_proj": ("q", "k", "v"),
    "context": ("attended_heads",),
    "out_proj": ("attended",),
    "mlpwi": ("gate", "up"),
    "mlpwi_0": ("gate",),
    "mlpwi_1": ("up",),
    "mlpwo": ("fed",),
}
_REMATS = {
    "none": "none",
    "full": "block",
    "minimal": "dots",
    "selective": "dots",
    "selective(attention)": "dots",
    "qkv_proj_offloaded": "q+k+v",
}


@dataclass(frozen=True, slots=True)
class ReplayQuestion:
    """One row: the run as the planner sees it, its software, and what was assumed."""

    row: PublishedRun
    run: TrainingRun
    engine: str
    chip: str  # as the row names it
    is_moe: bool
    assumed: tuple[str, ...]

    @property
    def tokens(self) -> int:
        return self.run.batch * self.run.seq

    @property
    def family(self) -> str:
        """The models that are sized alike: the name up to its first number or dash."""
        return self.row.model.lower().replace("_", "-").split("-")[0].rstrip("0123456789.")


def ask(row: PublishedRun, models: Mapping[str, Fields]) -> ReplayQuestion:
    """Turns a row into a question."""
    own = {"engine": row.fields["engine"]} if "engine" in row.fields else {}
    known = {**read_facts("sources").get(row.source, {}), **own}
    assumed = [] if known else [f"{row.source} runs an engine that nobody named"]
    assumed += map(str, row.fields.get("assumed") or ())
    chips = _whole(row, "chips")
    slices = int(row.fields.get("slices") or 1)
    found = measured_chip(row.chip)
    degrees = read_degrees(row, chips, slices, found.devices)
    if "virtual" in known and degrees.stages > 1 and "vp" not in row.table("layout"):
        degrees = replace(degrees, virtual=int(known["virtual"]))
        assumed.append(f"{degrees.virtual} chunks of layers per stage")
    if not row.table("layout"):
        assumed.append("weights split over the chips of a slice, nothing else")
    model = sized_model(row, models)
    assumed += model.assumed
    graph = model_graph(model.spec)
    experts = [b.mlp.num_experts for b in model.spec.blocks if isinstance(b.mlp, Moe)]
    if placed := row.table("placed"):  # by one who knows: a run of one's own
        on = replace(parse_slice(str(placed["on"])), chip=found.chip)
        mesh, layout = parse_mesh(str(placed["mesh"]), on=on), str(placed["layout"])
    else:
        axes, layout = mesh_axes(degrees, max(experts, default=0))
        if found.chip.torus:
            layout = layout.replace("sp=Y", "tp=Y")  # MaxText splits the stream by the model dim
        mesh = place_axes(axes, slice_of(row, found, chips, slices))
    batch, seq, micro = _batch(row, degrees, chips * found.devices, known, assumed)
    flags = row.table("flags")
    if model.is_moe and "dispatcher" not in flags:
        assumed.append("tokens sent once, beside other work")
    run = TrainingRun(
        graph,
        parse_layout(layout),
        mesh,
        batch,
        seq,
        _compute(row, assumed),
        micro,
        _remat(row, graph, known, assumed),
        freezes_weights="lora" in (row.kind, row.fields.get("method")),
        updates_on_host=bool(row.table("layout").get("cpu_offload_optimizer")),
        sends_once=flags.get("dispatcher") != "alltoall",
        hides_exchanges=flags.get("ep_overlap") is not False,
        in_step=known.get("engine") == "rooflight",
    )
    engine = _engine(row, known, found.chip.kind)
    return ReplayQuestion(row, run, engine, row.chip, model.is_moe, tuple(assumed))


def _engine(row: PublishedRun, known: Fields, kind: str) -> str:
    """The software, and the release at which its kernels changed; whole layers as CUDA graphs
    change them too, parts of a layer leave most launches where they were."""
    engine = str(known.get(f"engine_on_{kind}") or known.get("engine", "unknown"))
    if own := read_facts("models").get(row.model, {}).get("kernels"):
        return f"{engine}-{own}"
    if row.table("flags").get("cuda_graph") in ("layer", "full"):
        return f"{engine}@graphs"
    release = str(row.fields.get("release") or "")
    versions = [v for v in known.get("versions", ()) if v <= release]
    return f"{engine}@{max(versions)}" if versions else engine


def _whole(row: PublishedRun, name: str) -> int:
    value = row.fields.get(name)
    if not isinstance(value, int | float) or value < 1:
        raise UsageError(f"the source does not say how many {name}", hint=f"add {name}:")
    return int(value)


def _compute(row: PublishedRun, assumed: list[str]) -> Dtype:
    """The dtype of weight matmuls; kinds of scaling share the rate of their format."""
    stated = row.table("dtype").get("compute")
    if stated is None:
        assumed.append("matmuls in bf16")
        return DTYPES["bf16"]
    name = _DTYPES.get(str(stated), str(stated))
    if name not in DTYPES:
        name = name.replace("_", "-").split("-")[0]
    if name not in DTYPES:
        raise UsageError(f"no chip computes in {stated}", hint=f"use one of {', '.join(DTYPES)}")
    return DTYPES[name]


def _batch(
    row: PublishedRun, degrees: Degrees, devices: int, known: Fields, assumed: list[str]
) -> tuple[int, int, Microbatching]:
    """Sequences of a step, their length, and the microbatches they come in."""
    batch = row.table("batch")
    if not batch:
        raise UsageError("the source does not say the batch", hint="add batch:")
    seq = int(batch.get("seq_len") or 0)
    if not seq:
        seq = min(int(batch.get("tokens_per_chip") or 4096), 4096)
        assumed.append(f"sequences of {seq}")
    count = _sequences(batch, seq, degrees, devices)
    if not count:
        each = int(known.get("sequences", 1))
        assumed.append(f"{each} sequences per chip")
        count = each * degrees.data
    microbatches = _microbatches(batch, count, degrees, assumed)
    schedule = "interleaved" if degrees.virtual > 1 and degrees.stages > 1 else "1f1b"
    virtual = degrees.virtual if schedule == "interleaved" else 1
    return count, seq, Microbatching(microbatches, schedule, virtual)


def _sequences(batch: Fields, seq: int, degrees: Degrees, devices: int) -> int:
    """0 where the source does not say."""
    if batch.get("global_seqs"):
        return int(batch["global_seqs"])
    if batch.get("per_device_seqs"):
        return int(batch["per_device_seqs"] * devices)
    if batch.get("tokens_per_step"):
        return int(batch["tokens_per_step"]) // seq
    if batch.get("tokens_per_chip"):
        chips = degrees.data * degrees.tensor * degrees.stages * degrees.context
        return int(batch["tokens_per_chip"]) * chips // seq
    if batch.get("local"):
        return int(batch["local"]) * degrees.data
    if batch.get("micro"):
        return int(batch["micro"]) * int(batch.get("num_microbatches") or 1) * degrees.data
    return 0


def _microbatches(batch: Fields, count: int, degrees: Degrees, assumed: list[str]) -> int:
    each = count // degrees.data
    if count % degrees.data:
        raise UsageError(
            f"{degrees.data} data ways do not divide {count} sequences", hint="check batch:"
        )
    for name in ("num_microbatches", "grad_accum"):
        if batch.get(name):
            return int(batch[name])
    if batch.get("micro"):
        size = int(batch["micro"])
        if each % size:
            raise UsageError(f"microbatches of {size} do not divide {each} sequences", hint="")
        return each // size
    if degrees.stages > 1:
        assumed.append("microbatches of one sequence")
        return each
    return 1


def _remat(row: PublishedRun, graph: Graph, known: Fields, assumed: list[str]) -> Remat:
    """A policy by name, or the tensors that are kept; those offloaded to the host are kept."""
    stated = row.fields.get("remat")
    if stated is None:
        name = str(known.get("remat", "none"))
        assumed.append(f"recomputation: {name}")
        return _named(name, graph)
    if isinstance(stated, str):
        return _named(_REMATS.get(stated, stated), graph)
    policy = row.table("remat")
    kept = [n for k in ("save_on_device", "host_offload") for n in policy.get(k, ())]
    names = [t for n in kept for t in _KEPT.get(str(n), ())]
    if names:
        return _named("+".join(dict.fromkeys(names)), graph)
    return _named(_REMATS.get(str(policy.get("policy")), "block"), graph)


def _named(name: str, graph: Graph) -> Remat:
    """Only the tensors that this model makes: a latent has no k of its own to keep."""
    if name in REMATS:
        return REMATS[name]
    made = {op.contraction.result.name for op in graph.ops if op.block is not None}
    names = [n for n in name.split("+") if n in made]
    return parse_remat("+".join(names), graph) if names else REMATS["block"]

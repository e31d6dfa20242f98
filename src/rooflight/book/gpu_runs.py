"""Recipes of chapter 12: published runs on GPUs, their layouts, and pipelines."""

from collections.abc import Mapping

from rooflight.book.derivation import Derivation, Line, Recipe, asked, fan_lines, mesh_of, slice_of
from rooflight.book.entry import Entry, Value
from rooflight.book.gpu_parallel import tokens_per_gpu, whole_slice
from rooflight.book.layer import BookLayer, tokens_bound
from rooflight.costs.network import collective_time
from rooflight.dtypes import DTYPES
from rooflight.hardware.mesh import parse_mesh
from rooflight.models.layout.schedules import make_schedule
from rooflight.plan.training.time.pipeline import SlotTimes, simulate_pipeline

_STEP = 1e-12  # seconds of a slot that takes next to no time


def _batch(e: Entry) -> float:
    """Tokens of a step: given, or as sequences."""
    return e.number("batch") if "batch" in e.inputs else e.number("seqs") * e.number("seq")


def _batch_of_a_run(e: Entry) -> Derivation:
    """What data parallelism alone would need for a run, beside what the run used."""
    mesh = whole_slice(slice_of(e))
    per_gpu = tokens_per_gpu(mesh)
    found: dict[str, Value] = {"tokens_per_gpu": per_gpu, "used": _batch(e)}
    found["need"] = per_gpu * mesh.slice.num_chips
    lines = (*fan_lines(mesh, "X"), Line("tokens for each GPU", per_gpu, "token"))
    return asked(e, found, lines)


def _known_layout(e: Entry) -> Derivation:
    """A published layout on its mesh: P pipeline stages, Z experts or Y tensor ways, X data."""
    mesh = mesh_of(e)
    inner = "Z" if "Z" in mesh.axes else "Y"
    batch = _batch(e)
    time = collective_time("all_gather", 1.0, mesh.group("X"))
    found: dict[str, Value] = {
        "ep": mesh.size(inner),
        "tp": mesh.size(inner),
        "pp": mesh.size("P"),
        "dp": mesh.size("X"),
        "model_parallel": mesh.size("P") * mesh.size(inner),
        "batch": batch,
        "tokens_per_gpu": batch / mesh.slice.num_chips,
        "dp_bw_gain": time.rule_s / time.bandwidth_s,
    }
    lines = (Line(f"GPUs of {mesh}", mesh.slice.num_chips, "chips"), *fan_lines(mesh, "X"))
    return asked(e, found, lines)


def _behind_a_pipeline(e: Entry) -> Derivation:
    """Data parallelism over what P stages leave: each GPU has 1 / P of the layers."""
    mesh = mesh_of(e)
    alone, behind = tokens_per_gpu(whole_slice(mesh.slice)), tokens_per_gpu(mesh)
    found: dict[str, Value] = {"bound_pp8": behind, "reduction": alone / behind}
    if "batch" in e.inputs:
        found["tokens_per_gpu"] = e.number("batch") / mesh.slice.num_chips
    lines = Line("without a pipeline", alone, "token"), Line("behind one", behind, "token")
    return asked(e, found, lines)


def _megatron(e: Entry) -> Derivation:
    """Tokens for each GPU; an input is sequences and GPUs."""
    runs = {name: e.position(name) for name in e.expected}
    values = {name: e.number("seq") * seqs / gpus for name, (seqs, gpus) in runs.items()}
    lines = tuple(Line(f"GPUs of {name}", gpus, "chips") for name, (_, gpus) in runs.items())
    return Derivation(values, lines)


def _model_parallel_over_nodes(e: Entry) -> Derivation:
    """The nodes that tensor parallelism spans share the weights of data parallelism."""
    layer = BookLayer("fsdp=X,tp=Y", backward=True)
    values: dict[str, Value] = {"base": tokens_per_gpu(whole_slice(slice_of(e)))}
    lines: list[Line] = []
    for name in ("70b", "314b"):
        mesh = parse_mesh(e.text(f"mesh_{name}"), on=slice_of(e, f"on_{name}"))
        values[name] = tokens_bound(layer, mesh, axis="X") / mesh.slice.num_chips
        lines += fan_lines(mesh, "X")
    return Derivation(values, tuple(lines))


def _pipeline_transfers(e: Entry) -> Derivation:
    """A forward pass whose stages take no time: microbatches queue for the links between nodes."""
    mesh, count = mesh_of(e), e.whole("microbatches")
    sent = DTYPES["bf16"].nbytes(e.whole("B") * e.whole("D")) / count
    hop = collective_time("permute", sent / mesh.size("X"), mesh.group("P")).rule_s
    table = make_schedule("gpipe", stages=e.whole("stages"), microbatches=count)
    run = simulate_pipeline(table, SlotTimes(_STEP, 0, 0, transfer_s=hop))
    forwards = [g.end_s for g in run.devices[-1] if g.slots[0].kind == "F"]
    lines = (Line("bytes of a microbatch", sent, "B"), Line("one hop of it", hop, "s"))
    return Derivation({"t": max(forwards)}, lines)


RECIPES: Mapping[str, Recipe] = {
    "gpus.dp_llama3_16k": _batch_of_a_run,
    "gpus.dp_deepseek": _batch_of_a_run,
    "gpus.pp_comms": _pipeline_transfers,
    "gpus.deepseek_layout": _known_layout,
    "gpus.llama3_layout": _known_layout,
    "gpus.llama3_pp_reduction": _behind_a_pipeline,
    "gpus.quiz5_q2_batch": _behind_a_pipeline,
    "gpus.quiz5_q3_megatron": _megatron,
    "gpus.quiz5_q3_bounds": _model_parallel_over_nodes,
}

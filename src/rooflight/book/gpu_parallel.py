"""Recipes of chapter 12: data, tensor and expert parallelism behind switches."""

import math
from collections.abc import Mapping

from rooflight.book.derivation import (
    Derivation,
    Line,
    Recipe,
    asked,
    chip_of,
    fan_lines,
    mesh_of,
    slice_of,
)
from rooflight.book.entry import Entry, Value
from rooflight.book.layer import (
    LARGEST,
    MATMULS,
    BookLayer,
    By,
    Quantities,
    Sizes,
    by_rule,
    fit,
    root,
    tokens_bound,
)
from rooflight.costs.network import NetworkTime, collective_time, ragged_share_bound
from rooflight.dtypes import DTYPES
from rooflight.hardware.mesh import Mesh, parse_mesh
from rooflight.hardware.slice import Slice
from rooflight.models.layout.schedules import make_schedule
from rooflight.plan.training.time.pipeline import SlotTimes, simulate_pipeline

_STEP = 1e-12  # seconds of a slot that takes next to no time

# Tokens and D cancel. Fifteens let three and five nodes divide D and F, too.
_TOKENS, _WIDTH, _INNER = 2**20, 15 * 2**12, 15 * 2**16


def _exactly(time: NetworkTime) -> float:
    return time.bandwidth_s


def _leaf_by_rule(time: NetworkTime) -> float:
    return next(t.rule_s for t in time.tiers if t.name == "leaf")


def _leaf_exactly(time: NetworkTime) -> float:
    return next(t.bandwidth_s for t in time.tiers if t.name == "leaf")


def tokens_per_gpu(
    mesh: Mesh, *, by: By = by_rule, experts: tuple[int, int] | None = None
) -> float:
    """Tokens for each GPU that keep data parallelism over X busy."""
    layer = BookLayer("dp=X", backward=True, experts=experts, by=by)
    return tokens_bound(layer, mesh) / mesh.slice.num_chips


def whole_slice(on: Slice) -> Mesh:
    """Every GPU on axis X."""
    return parse_mesh(f"X={on.num_chips}", on=on)


def _data_parallel(e: Entry) -> Derivation:
    """In a node, and across nodes."""
    node, fabric = whole_slice(slice_of(e, "node")), whole_slice(slice_of(e, "fabric"))
    inside, across = tokens_per_gpu(node), tokens_per_gpu(fabric)
    found: dict[str, Value] = {"in_node": inside, "cross_node": across, "rule": across}
    return asked(e, found, (*fan_lines(node, "X"), *fan_lines(fabric, "X")))


def _mixture(e: Entry) -> Derivation:
    mesh = whole_slice(slice_of(e))
    experts = e.whole("E"), e.whole("k")
    dense, needed = tokens_per_gpu(mesh), tokens_per_gpu(mesh, experts=experts)
    lines = Line("a dense layer needs", dense, "token"), Line("a mixture needs", needed, "token")
    return Derivation({"tokens_per_gpu": needed}, lines)


def _two_nodes(e: Entry) -> Derivation:
    """The network beyond a node; the switch inside one binds before, which the book leaves out."""
    mesh = whole_slice(slice_of(e))
    lines = (
        *fan_lines(mesh, "X"),
        Line("with what happens inside a node", tokens_per_gpu(mesh, by=_exactly), "token"),
    )
    return Derivation({"tokens_per_gpu": tokens_per_gpu(mesh, by=_leaf_exactly)}, lines)


def _across_racks(e: Entry) -> Derivation:
    """What racks need of the network between them, and how much less that is than between nodes."""
    racks = whole_slice(slice_of(e))
    nodes = whole_slice(slice_of(e.given(bf16_flops=e.inputs["against_flops"]), "against"))
    needed, before = (tokens_per_gpu(m, by=_leaf_by_rule) for m in (racks, nodes))
    lines = (
        Line(f"between units of {nodes.slice}", before, "token"),
        Line(f"between units of {racks.slice}", needed, "token"),
        Line("inside such a unit", tokens_per_gpu(racks), "token"),
    )
    return Derivation({"tokens_per_gpu": needed, "gain": before / needed}, lines)


def _tensor_seconds(mesh: Mesh, inner: int, by: By) -> Quantities:
    layer = BookLayer("tp=Y", forward=True, by=by)
    return layer.seconds(mesh, {"B": _TOKENS, "D": _WIDTH, "F": inner})


def _least_inner(mesh: Mesh, by: By = by_rule) -> float:
    """The width F from which tensor parallelism over Y is bound by its matmuls."""
    laws = fit(lambda sizes: _tensor_seconds(mesh, sizes["F"], by), {"F": _INNER})
    return root(lambda f: laws[MATMULS].at({"F": f}) - laws["Y"].at({"F": f}), 1, LARGEST)


def _most_ways(on: Slice, inner: float, *, first: int) -> float:
    """Ways that a width allows, by the rule for groups of `first` GPUs and more."""

    def ask(sizes: Sizes) -> Quantities:
        return {"F": _least_inner(_over_y(on, sizes["Y"]))}

    law = fit(ask, {"Y": first})["F"]
    return root(lambda y: law.at({"Y": y}) - inner, 1 / LARGEST, LARGEST)


def _over_y(on: Slice, ways: int) -> Mesh:
    """A part of one node, or whole nodes."""
    node = on.shape[0]
    shape = (ways,) if ways <= node else (node, ways // node)
    return parse_mesh(f"Y={ways}", on=Slice(on.chip, shape))


def _tensor_parallel(e: Entry) -> Derivation:
    """In a node, across nodes, and with the exact share of traffic that leaves a node."""
    on, inner = slice_of(e), e.number("F")
    node = on.shape[0]
    inside = _most_ways(on, inner, first=2)
    found: dict[str, Value] = {"Y": inside, "cross": _most_ways(on, inner, first=2 * node)}
    found["divisor"] = _least_inner(_over_y(on, node)) / node
    found["chosen"] = min(node, 2 ** math.floor(math.log2(inside)))
    found["two_node"] = _most_ways_exactly(on, inner)
    lines = (
        Line("F that a way needs in a node", _least_inner(_over_y(on, node)) / node, "elements"),
        Line(
            "F that two nodes need exactly",
            _least_inner(_over_y(on, 2 * node), _leaf_exactly),
            "elements",
        ),
    )
    return asked(e, found, lines)


def _most_ways_exactly(on: Slice, inner: float) -> float:
    """The F that nodes need of the network between them goes with how many others there are."""
    node = on.shape[0]

    def ask(sizes: Sizes) -> Quantities:
        mesh = _over_y(on, node * (1 + sizes["others"]))
        return {"F": _least_inner(mesh, _leaf_exactly)}

    law = fit(ask, {"others": 1})["F"]
    return node * (1 + root(lambda n: law.at({"others": n}) - inner, 1 / LARGEST, LARGEST))


def _b200(e: Entry) -> Derivation:
    """Bounds of tensor parallelism in a node and of data parallelism across nodes."""
    node, fabric = slice_of(e, "node"), whole_slice(slice_of(e, "fabric"))
    divisor = _least_inner(_over_y(node, node.num_chips)) / node.num_chips
    gain = node.chip.peak_flops("bf16") / chip_of(e, "than").peak_flops("bf16")
    values = {"tp_divisor": divisor, "dp_cross": tokens_per_gpu(fabric), "flops_gain": gain}
    return Derivation(values, fan_lines(fabric, "X"))


def _expert_seconds(mesh: Mesh, experts: tuple[int, int], inner: int, by: By) -> Quantities:
    layer = BookLayer("dp=Z,ep=Z", forward=True, experts=experts, by=by)
    return layer.seconds(mesh, {"B": _TOKENS, "D": _WIDTH, "F": inner})


def _expert_parallel(e: Entry) -> Derivation:
    """The width of an expert from which its matmuls hide both exchanges of tokens."""
    mesh, experts = mesh_of(e), (e.whole("E"), e.whole("k"))
    nodes, node = mesh.slice.num_chips // mesh.slice.shape[0], mesh.slice.shape[0]
    # A token that several experts of one node want is sent there once.
    once = ragged_share_bound(experts[1], nodes) * nodes / experts[1]
    by = by_rule if "rule" in e.inputs else _exactly
    laws = fit(lambda sizes: _expert_seconds(mesh, experts, sizes["F"], by), {"F": _INNER})
    inner = root(lambda f: laws[MATMULS].at({"F": f}) - once * laws["Z"].at({"F": f}), 1, LARGEST)
    lines = (
        *fan_lines(mesh, "Z"),
        Line(f"copies that leave, for {nodes} nodes of {node}", once, "of k"),
    )
    return Derivation({"F": inner}, lines)


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
    "gpus.dp_thresholds_h100": _data_parallel,
    "gpus.dp_moe_gptoss": _mixture,
    "gpus.dp_2node": _two_nodes,
    "gpus.tp_limits_h100": _tensor_parallel,
    "gpus.ep_threshold": _expert_parallel,
    "gpus.ep_small_regime": _expert_parallel,
    "gpus.quiz5_q1_b200": _b200,
    "gpus.gb200_dp_cross": _across_racks,
    "gpus.quiz5_q2_tp": _tensor_parallel,
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

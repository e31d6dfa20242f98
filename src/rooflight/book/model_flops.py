"""Recipes about the FLOPs of models: operations, layers, remat, budgets and years on one chip."""

import math
from collections.abc import Mapping
from dataclasses import replace

from rooflight.algebra.contract import strategies
from rooflight.algebra.notation import parse_contraction, parse_tensor
from rooflight.algebra.shapes import device_bytes, local_shape, total_bytes, ways
from rooflight.book.derivation import Derivation, Line, Recipe, chip_of, dims_of
from rooflight.book.entry import Entry, Value
from rooflight.book.models import flops_of, model_of
from rooflight.costs.roofline import contraction_time, memory_bytes_per_s, padded_shape
from rooflight.hardware.mesh import parse_mesh
from rooflight.models.graph.build import model_graph
from rooflight.models.graph.count import count_params
from rooflight.models.graph.utilisation import six_nd
from rooflight.units import parse_sizes

_QKVO = ("attention.q", "attention.k", "attention.v", "attention.out")
_PAIRS = ("attention.scores", "attention.mix")
_YEAR_S = 365 * 24 * 3600
_TRAIN = 3  # a forward pass and its two backward contractions


def _contraction_flops(text: str, dims: Mapping[str, int]) -> float:
    """FLOPs of one unsharded contraction."""
    (found,) = strategies(parse_contraction(text))
    return 2 * found.steps[-1].elements(dims, {})


def _operations(e: Entry) -> Derivation:
    dims = {dim: e.whole(dim) for dim in ("N", "P", "M")}
    texts = {
        "dot": "x[P] * y[P] -> z[]",
        "matvec": "A[N,P] * x[P] -> y[N]",
        "matmul": "A[N,P] * B[P,M] -> C[N,M]",
    }
    values = {name: _contraction_flops(text, dims) for name, text in texts.items()}
    lines = tuple(Line(texts[name], value, "FLOP") for name, value in values.items())
    return Derivation(values | {"train_matmul": _TRAIN * values["matmul"]}, lines)


def _einsum(e: Entry) -> Derivation:
    text = e.text("contraction")
    flops = _contraction_flops(text, {dim: e.whole(dim) for dim in "IJKLMNO"})
    return Derivation({"flops": flops}, (Line(text, flops, "FLOP"),))


def _sharded(e: Entry) -> Derivation:
    """What the devices of a mesh do of a contraction that leaves one axis unused."""
    dims = {dim: e.whole(dim) for dim in "BDF"}
    mesh = parse_mesh(e.text("mesh"), on=e.text("on"))
    (found,) = strategies(parse_contraction(e.text("contraction")), mesh.axes)
    per_device = 2 * found.steps[-1].elements(dims, mesh.axes)
    ideal = 2 * dims["B"] * dims["D"] * dims["F"]
    ratio = per_device * mesh.slice.num_chips / ideal
    lines = (Line(str(found.steps[-1]), per_device, "FLOP"), Line("in all, once", ideal, "FLOP"))
    return Derivation({"total_over_ideal": ratio, "per_device": per_device}, lines)


def _matmul_time(e: Entry) -> Derivation:
    flops = _contraction_flops("A[B,D] * W[D,F] -> C[B,F]", {d: e.whole(d) for d in "BDF"})
    seconds = contraction_time(chip_of(e), flops=flops, bytes_moved=0, compute="bf16").lower_s
    return Derivation({"flops": flops, "t": seconds}, (Line("A[B,D] * W[D,F]", flops, "FLOP"),))


def _layer(e: Entry) -> Derivation:
    graph, batch, seq = model_graph(model_of(e)), e.whole("B"), e.whole("T")
    groups = {"mlp": ("mlp.",), "qkvo": _QKVO, "dot_attn": _PAIRS, "unembed": ("head.",)}
    values = {
        name: _TRAIN * flops_of(graph, batch=batch, seq=seq, ops=ops)
        for name, ops in groups.items()
    }
    lines = tuple(Line(f"training, {name}", value, "FLOP") for name, value in values.items())
    return Derivation(values, lines)


def _head_coefficient(e: Entry) -> Derivation:
    """A lookup has no FLOPs, so the vocabulary costs one matmul."""
    flops = flops_of(model_graph(model_of(e)), batch=1, seq=1, ops=("head.", "embedding."))
    return Derivation({"coef": _TRAIN * flops}, (Line("forward, both tables", flops, "FLOP"),))


def _remat(e: Entry) -> Derivation:
    """Forward, backward, and the blocks forward once more, for each parameter of the blocks."""
    graph = model_graph(model_of(e))
    forward = flops_of(graph, batch=1, seq=1, ops=("mlp.", *_QKVO))
    params = count_params(graph, parts=("mlp", "attention"))
    lines = (Line("forward", forward, "FLOP"), Line("params", params, "param"))
    return Derivation({"coef": (_TRAIN + 1) * forward / params}, lines)


def _mlp_passes(e: Entry) -> Derivation:
    forward = flops_of(model_graph(model_of(e)), batch=1, seq=1, ops=("mlp.",))
    line = Line("forward, two matrices", forward, "FLOP")
    return Derivation({"fwd": forward, "bwd": (_TRAIN - 1) * forward}, (line,))


def _attention_context(e: Entry) -> Derivation:
    """Attention grows with the context and the rest does not: they meet where the ratio is 1."""
    graph = model_graph(model_of(e))
    rest_ops = _QKVO if "lhs_coef" in e.expected else ("mlp.", *_QKVO)
    seq = e.whole("T") if "T" in e.inputs else e.whole("D")
    pairs = flops_of(graph, batch=1, seq=seq, ops=_PAIRS)
    rest = flops_of(graph, batch=1, seq=seq, ops=rest_ops)
    square = e.whole("D") * e.whole("N") * e.whole("H")  # D x NH
    values = {"T": seq * rest / pairs, "ratio": pairs / rest}
    values["lhs_coef"] = _TRAIN * rest / (seq * square)
    lines = (Line(f"attention at {seq}", pairs, "FLOP"), Line("matmuls there", rest, "FLOP"))
    return Derivation({name: values[name] for name in e.expected}, lines)


def _recomputed_pairs(e: Entry) -> Derivation:
    graph = model_graph(model_of(e))
    flops = flops_of(graph, batch=e.whole("B"), seq=e.whole("T"), ops=_PAIRS)
    return Derivation({"flops": flops}, (Line("scores and mix again", flops, "FLOP"),))


def _deepseek(e: Entry) -> Derivation:
    available = e.number("gpu_hours") * 3600 * e.number("fp8_dense")
    used = six_nd(e.number("active_params"), e.number("tokens"))
    lines = (Line("what the chips could do", available, "FLOP"), Line("6 N D", used, "FLOP"))
    return Derivation({"available": available, "used": used, "mfu": used / available}, lines)


def _per_token(e: Entry) -> Derivation:
    flops = six_nd(e.number("params"), 1)
    seconds = contraction_time(chip_of(e), flops=flops, bytes_moved=0, compute="bf16").lower_s
    return Derivation({"flops": flops, "t": seconds}, (Line("6 N a token", flops, "FLOP"),))


def _budget(e: Entry) -> Derivation:
    flops = six_nd(e.number("params"), e.number("tokens"))
    years = flops / chip_of(e).peak_flops("bf16") / _YEAR_S
    return Derivation({"flops": flops, "years_1chip": years}, (Line("6 N D", flops, "FLOP"),))


def _token_and_run(e: Entry) -> Derivation:
    values = {"per_token": six_nd(e.number("params"), 1)}
    values["total"] = six_nd(e.number("params"), e.number("tokens"))
    return Derivation(values, tuple(Line(f"6 N D, {n}", v, "FLOP") for n, v in values.items()))


def _forward_per_token(e: Entry) -> Derivation:
    flops = six_nd(e.number("active"), 1) / _TRAIN
    return Derivation({"flops": flops}, (Line("2 N a token", flops, "FLOP"),))


def _petaflop_days(e: Entry) -> Derivation:
    day_s = 24 * 3600
    values = {"gpt3": e.number("gpt3_pflop") / day_s}
    values["llama3_405b"] = e.number("llama_pflop") / day_s
    return Derivation(values, (Line("seconds of a day", day_s, "s"),))


def _years(e: Entry) -> Derivation:
    """Years at the peak of one chip: the catalog's where it has the chip, else the slides'."""
    known = "chip" in e.inputs
    peak = chip_of(e).peak_flops("bf16") if known else e.number("peak_flops")
    values = {
        f"{name}_years": e.number(f"{name}_flops") / peak / _YEAR_S for name in ("gpt3", "llama3")
    }
    return Derivation(values, (Line("peak of the chip", peak, "FLOP/s"),))


def _axes(e: Entry) -> dict[str, int]:
    """The mesh of a question that names no hardware."""
    return parse_sizes(e.text("mesh"), what="mesh axis")


def _shapes(e: Entry) -> Derivation:
    """The local shape of each tensor among the inputs: `A` gives `A_local`."""
    texts = {name: i.value for name, i in e.inputs.items() if i.unit == "tensor"}
    values: dict[str, Value] = {}
    lines: list[Line] = []
    for name, text in texts.items():
        tensor = parse_tensor(str(text))
        values[f"{name}_local"] = local_shape(tensor, dims_of(e, tensor), _axes(e))
        lines.append(Line(f"{tensor} on a device", values[f"{name}_local"], "elem"))
    return Derivation(values, tuple(lines))


def _shapes_of_product(e: Entry) -> Derivation:
    """Local shapes of the operands and of what the derived steps leave as the result."""
    product, axes = parse_contraction(e.text("product")), _axes(e)
    dims = dims_of(e, *product.operands)
    steps = strategies(product, axes)[0].steps
    tensors = {t.name: t for t in (*product.operands, steps[-1].output)}
    found = {f"{name}_local": local_shape(t, dims, axes) for name, t in tensors.items()}
    values = {name: found[name] for name in e.expected}
    lines = tuple(Line(str(step), local_shape(step.output, dims, axes), "elem") for step in steps)
    return Derivation(values, lines)


def _one_array(e: Entry) -> Derivation:
    """Bytes of an array: on a device, over all devices, and beside a single copy."""
    tensor, axes, dtype = parse_tensor(e.text("tensor")), _axes(e), e.dtype()
    dims = dims_of(e, tensor)
    per_device = device_bytes(tensor, dims, axes, dtype)
    total = total_bytes(tensor, dims, axes, dtype)
    whole = replace(tensor, axes=tuple(() for _ in tensor.dims))
    copy = device_bytes(whole, dims, axes, dtype)
    found: dict[str, Value] = {"local_shape": local_shape(tensor, dims, axes)}
    found |= {"per_device": per_device, "total": total, "ratio": total / copy}
    lines = [
        Line(f"{tensor} on a device", per_device, "B"),
        Line("on all devices", total, "B"),
        Line("one copy", copy, "B"),
    ]
    if "t" in e.expected:
        rate = memory_bytes_per_s(chip_of(e))
        found["t"] = per_device / rate
        lines.append(Line("HBM", rate, "B/s"))
    return Derivation({name: found[name] for name in e.expected}, tuple(lines))


def _ways(e: Entry) -> Derivation:
    tensor, axes = parse_tensor(e.text("tensor")), _axes(e)
    shards = math.prod(ways(a, axes) for a in tensor.axes)
    return Derivation({"ways": shards}, (Line(f"shards of {tensor}", shards, "ways"),))


def _arrays_of_a_block(e: Entry) -> Derivation:
    names = {"weight": "W[D,F]", "act_in": "x[B,D]"}
    values: dict[str, Value] = {}
    for name, text in names.items():
        tensor = parse_tensor(text)
        values[name] = device_bytes(tensor, dims_of(e, tensor), {}, e.dtype())
    return Derivation(values, tuple(Line(names[n], v, "B") for n, v in values.items()))


def _in_tiles(e: Entry) -> Derivation:
    shape, tile = e.position("shape"), e.position("tile")
    padded = padded_shape(shape, tile)
    held, asked_for = math.prod(padded), math.prod(shape)
    lines = Line("elements asked for", asked_for, "elem"), Line("elements held", held, "elem")
    return Derivation({"padded": padded, "expansion": held / asked_for}, lines)


RECIPES: Mapping[str, Recipe] = {
    "tpus.q6_flops": _matmul_time,
    "transformers.dot_flops": _operations,
    "transformers.layer_train_flops": _layer,
    "transformers.vocab_train_flops_summary": _head_coefficient,
    "transformers.remat_factor": _remat,
    "transformers.attn_dominates_8d": _attention_context,
    "transformers.attn_dominates_gemma27b": _attention_context,
    "transformers.attn_ratio": _attention_context,
    "transformers.qkvo_equals_attn": _attention_context,
    "transformers.q2_sharded_flops": _sharded,
    "transformers.q3_einsum": _einsum,
    "transformers.q6_remat_attn": _recomputed_pairs,
    "transformers.q7_deepseek_mfu": _deepseek,
    "training.compute_table": _mlp_passes,
    "applied_training.llama70b_flops_per_token": _per_token,
    "applied_training.llama70b_total_flops": _budget,
    "applied_training.ex2_405b_flops": _token_and_run,
    "inference.q5_moe_flops": _forward_per_token,
    "slides.pfdays": _petaflop_days,
    "slides.single_chip_years_m3": _years,
    "slides.single_chip_years_core_ultra": _years,
    "slides.single_chip_years_trillium": _years,
    "slides.single_chip_years_h100": _years,
    "sharding.local_shape_2x2": _one_array,
    "sharding.mesh_4x8_ways": _ways,
    "sharding.popquiz_int8": _one_array,
    "sharding.popquiz_fp32_h100": _one_array,
    "sharding.jax_snippet_shapes": _shapes,
    "sharding.q1_replication": _one_array,
    "sharding.q7_memory": _arrays_of_a_block,
    "profiling.ffw_local_shapes": _shapes_of_product,
    "profiling.tile_padding": _in_tiles,
    "jax.matmul_square_shapes": _shapes_of_product,
    "slides.shard_quiz": _one_array,
}

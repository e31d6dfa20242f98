"""Recipes about the FLOPs of models: operations, layers, remat, budgets and years on one chip."""

from collections.abc import Mapping

from rooflight.algebra.contract import strategies
from rooflight.algebra.notation import parse_contraction
from rooflight.book.derivation import Derivation, Line, Recipe, chip_of
from rooflight.book.entry import Entry
from rooflight.book.models import flops_of, model_of
from rooflight.costs.roofline import contraction_time
from rooflight.hardware.mesh import parse_mesh
from rooflight.models.graph.build import model_graph
from rooflight.models.graph.count import count_params
from rooflight.models.graph.utilisation import six_nd

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
}

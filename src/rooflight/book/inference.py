"""Recipes of chapter 7: bounds of prefill and generate, and where they change hands."""

import math
from bisect import bisect_left
from collections.abc import Mapping

from rooflight.book.derivation import Derivation, Line, Recipe, asked, chip_of, mesh_of, slice_of
from rooflight.book.entry import Entry, Value
from rooflight.book.layer import BookLayer, on_a_cube, root
from rooflight.book.models import model_of
from rooflight.book.training import hbm_bytes, params_bytes
from rooflight.costs.roofline import attention_intensity, critical_batch, hiding_intensity
from rooflight.dtypes import DTYPES
from rooflight.hardware.slice import Slice
from rooflight.models.graph.build import model_graph
from rooflight.models.graph.count import count_params, kv_bytes, kv_bytes_per_token
from rooflight.models.presets import load_model
from rooflight.plan.serving.simulate.load import prefill_load
from rooflight.plan.serving.step.time import ServingStepTime
from rooflight.plan.serving.step.totals import Speculation, Totals, generate_ways

_LONGEST = 10**6  # positions; no prompt of the book comes near
_DTYPES = {  # of weights, activations and matmuls, by the names of the values
    "bf16_bf16": ("bf16", "bf16", "bf16"),
    "int8w_bf16": ("int8", "bf16", "bf16"),
    "int8_int8": ("int8", "int8", "int8"),
    "bf16": ("bf16", "bf16", "bf16"),
    "int8w": ("int8", "bf16", "bf16"),
    "int8_all": ("int8", "int8", "int8"),
}


def totals_of(e: Entry, *, on: str = "on") -> Totals:
    """The model of a question: by its preset, or by the bytes that it gives.

    `kv_part` is the share of the preset's cache that is kept, where heads share keys and values.
    """
    place, compute = slice_of(e, on), e.text("compute") if "compute" in e.inputs else "bf16"
    if "model" in e.inputs:
        graph, dtype = model_graph(model_of(e)), e.dtype()
        params = count_params(graph)
        kv = kv_bytes_per_token(graph, dtype) / (
            e.number("kv_part") if "kv_part" in e.inputs else 1
        )
        return Totals(place, params, dtype.nbytes(params), kv, compute)
    params = e.number("params") if "params" in e.inputs else 0.0
    weights = (
        e.number("weights") if "weights" in e.inputs else e.dtype("weight").nbytes(int(params))
    )
    kv = e.number("kv_per_token") if "kv_per_token" in e.inputs else 0.0
    return Totals(place, params, weights, kv, compute)


def step_lines(step: ServingStepTime) -> tuple[Line, ...]:
    """The parts of a step that take any time."""
    return tuple(Line(f"{name} of a step", s, "s") for name, s in step.parts.items() if s)


def power_of_two(chips: float) -> int:
    """The smallest slice that has so many chips."""
    return 2 ** math.ceil(math.log2(chips))


def _weights_read(e: Entry) -> Derivation:
    """Every weight through HBM once; what it leaves free where that is asked for."""
    totals = totals_of(e)
    step = totals.generate(1, 0)
    found: dict[str, Value] = {"t": step.hbm_s, "step": step.hbm_s, "t_load": step.hbm_s}
    found["bytes_per_chip"] = totals.weight_bytes / totals.on.num_chips
    found["free_per_chip"] = (totals.hbm_bytes - totals.weight_bytes) / totals.on.num_chips
    found["min_chips"] = power_of_two(totals.fewest_chips(0, 0))
    return asked(e, found, step_lines(step))


def critical_batches(e: Entry) -> Derivation:
    chip = chip_of(e)
    values: dict[str, Value] = {}
    for name in e.expected:
        weight, activation, compute = _DTYPES[name]
        values[name] = critical_batch(
            chip, weight=DTYPES[weight], activation=DTYPES[activation], compute=compute
        )
    lines = tuple(Line(f"tokens from which FLOPs bind, {n}", v, "token") for n, v in values.items())
    return Derivation(values, lines)


def _attention_bound(e: Entry) -> Derivation:
    """The prompt from which attention has more FLOPs per byte than a ridge point."""
    wanted = e.number("intensity")
    lengths = range(1, _LONGEST)
    at = bisect_left(lengths, wanted, key=lambda t: attention_intensity(q_len=t, kv_len=t))
    found = lengths[at]
    shown = attention_intensity(q_len=found, kv_len=found)
    return Derivation({"T": found}, (Line("FLOPs per byte at that length", shown, "FLOP/B"),))


def decode_step(e: Entry) -> Derivation:
    """A step of a batch at a context, and what is held meanwhile."""
    totals, batch, context = totals_of(e), e.number("batch"), e.number("ctx")
    step = totals.generate(batch, context)
    per_seq = context * totals.kv_bytes_per_token
    found: dict[str, Value] = {"kv_per_seq": per_seq, "kv_mem": batch * per_seq}
    found["total_mem"] = totals.held_bytes(batch, context)
    found |= {"t": step.expected_s, "step": step.expected_s, "throughput": step.tokens_per_s}
    found["tok_ms_chip"] = step.tokens_per_s / 1000 / totals.on.num_chips
    return asked(e, found, step_lines(step))


def _ring_divisor(e: Entry) -> Derivation:
    """The width F that each way of tensor parallelism needs."""
    mesh = mesh_of(e)
    chip, (ring,) = mesh.slice.chip, mesh.group("X").rings
    divisor = hiding_intensity(chip, "bf16", bytes_per_s=ring.bytes_per_s)
    return Derivation({"divisor": divisor}, (Line("one ring, both ways", ring.bytes_per_s, "B/s"),))


def ring_ways(e: Entry, model: str) -> float:
    """Ways at which one ring takes as long as the FLOPs of a prompt."""
    mesh = mesh_of(e)
    (ring,) = mesh.group("X").rings
    needed = hiding_intensity(mesh.slice.chip, "bf16", bytes_per_s=ring.bytes_per_s)
    return model_graph(load_model(model)).sizes["F"] / needed


def _typical_ways(e: Entry) -> Derivation:
    """The largest power of two that a narrow and a wide model allow."""
    ways = {name: ring_ways(e, e.text(name)) for name in ("lo", "hi")}
    values: dict[str, Value] = {n: 2 ** math.floor(math.log2(w)) for n, w in ways.items()}
    return Derivation(
        values, tuple(Line(f"ways of {e.text(n)}", w, "ways") for n, w in ways.items())
    )


def decode_ways(e: Entry) -> Derivation:
    inner, batch, beta = (e.number(n) for n in ("F", "B", "beta"))
    ways = generate_ways(inner=inner, batch=batch, hbm_over_ici=beta)
    line = Line("F that one way needs at this batch", batch * beta, "elements")
    return Derivation({"Y": ways}, (line,))


def _prefix(e: Entry) -> Derivation:
    whole = prefill_load([e.whole("total")], [None])
    rest = prefill_load([e.whole("total")], [None], cached=e.whole("shared"))
    line = Line("tokens left to compute", rest.tokens, "token")
    return Derivation({"fraction": rest.tokens / whole.tokens}, (line,))


def _look_ahead(e: Entry) -> Derivation:
    """The best look-ahead of a small draft model, at two rates of acceptance."""
    on = slice_of(e)
    target, draft = (
        Totals(on, n, e.dtype("weight").nbytes(int(n)))
        for n in (e.number("target_params"), e.number("draft_params"))
    )
    draft_s = draft.generate(1, 0).expected_s
    values: dict[str, Value] = {n: e.number(n) for n in ("target_params", "draft_params")}
    lines = [Line("a proposal", draft_s, "s"), *step_lines(target.generate(1, 0))]
    for name in ("lo", "hi"):
        plan = Speculation(
            e.number(f"acceptance_{name}"), draft_s, lambda q: target.generate(q, 0).expected_s
        )
        values[f"best_lookahead_{name}"] = plan.best
        lines.append(Line(f"gain at an acceptance of {plan.acceptance:g}", plan.gain, "x"))
    return Derivation(values, tuple(lines))


def _most_sequences(e: Entry) -> Derivation:
    """Caches that fit; with one kv head of eight, an eighth of each."""
    totals, context = totals_of(e), e.number("ctx")
    shared = Totals(
        totals.on, 0, totals.weight_bytes, totals.kv_bytes_per_token / e.number("kv_heads")
    )
    found: dict[str, Value] = {"kv_per_seq": context * totals.kv_bytes_per_token}
    found["batch"] = totals.most_sequences(context)
    found["batch_k1"] = shared.most_sequences(context)
    line = Line("HBM that the weights leave", totals.hbm_bytes - totals.weight_bytes, "B")
    return Derivation(found, (line,))


def _two_matrices(e: Entry) -> Derivation:
    """The weights of a layer, read by a few chips."""
    graph = model_graph(model_of(e))
    params = count_params(graph, parts=("mlp",))
    step = Totals(slice_of(e), params, e.dtype("weight").nbytes(params)).generate(1, 0)
    return Derivation({"t": step.hbm_s}, (Line("params of the layer", params, "param"),))


def _stationary(e: Entry, chips: float) -> tuple[float, float, float]:
    """2D weight-stationary on N chips: the best ways of D, of F, and T W / (B D).

    The 2D layer has D over the third ring (Y) and F over two (X); both halves of its network
    time have a constant product, so they are equal where their sum is least.
    """
    on = slice_of(e)
    laws = on_a_cube(BookLayer("ws=Y,tp=X", forward=True), on.chip)
    ratio = e.number("f_over_d")

    def sizes(y: float) -> Mapping[str, float]:
        return {"B": 1.0, "D": 1.0, "F": ratio, "X": chips / y, "Y": y}

    best = root(lambda y: laws["X"].at(sizes(y)) - laws["Y"].at(sizes(y)), 1e-3, chips * 1e3)
    seconds = laws["X"].at(sizes(best)) + laws["Y"].at(sizes(best))
    return best, chips / best, seconds * _ring(on)


def _ring(on: Slice) -> float:
    assert on.chip.torus is not None, f"{on} has no torus"
    return 2 * on.chip.torus.link_bytes_per_s


def _best_2d(e: Entry) -> Derivation:
    chips = e.number("N")
    x, yz, work = _stationary(e, chips)
    values: dict[str, Value] = {"X": x, "YZ": yz, "coef": work * math.sqrt(chips)}
    return Derivation(values, (Line("network time, times W / (B D)", work, "1"),))


def _even_2d(e: Entry) -> Derivation:
    """Chips from which 2D takes less network time than F over all three rings."""
    on = slice_of(e)
    plain = on_a_cube(BookLayer("tp=XY", forward=True), on.chip)
    sizes = {"B": 1.0, "D": 1.0, "F": e.number("f_over_d"), "X": 1.0, "Y": 1.0}
    one_d = sum(law.at(sizes) for name, law in plain.items() if "X" in name) * _ring(on)
    chips = root(lambda n: one_d - _stationary(e, n)[2], 2, 1e6)
    return Derivation({"N": chips}, (Line("1D network time, times W / (B D)", one_d, "1"),))


def _cache(e: Entry) -> int:
    """Bytes of the cache of one sequence of S tokens."""
    return kv_bytes(model_graph(model_of(e)), batch=1, seq=e.whole("S"), dtype=e.dtype())


def _kv_per_token(e: Entry) -> Derivation:
    """By dtype where the values are named so, else in the dtype of the question."""
    graph = model_graph(model_of(e))
    dtypes = {n: e.dtype() if n == "bytes" else DTYPES[n] for n in e.expected}
    values: dict[str, Value] = {n: kv_bytes_per_token(graph, d) for n, d in dtypes.items()}
    lines = tuple(Line(f"keys and values in {dtypes[n].name}", v, "B") for n, v in values.items())
    return Derivation(values, lines)


def _kv_of_a_sequence(e: Entry) -> Derivation:
    nbytes = _cache(e)
    return Derivation({"bytes": nbytes}, (Line("keys and values of a sequence", nbytes, "B"),))


def _kv_of_a_batch(e: Entry) -> Derivation:
    one = _cache(e)
    values: dict[str, Value] = {"per_seq": one, "batch_total": one * e.whole("batch")}
    return Derivation(values, (Line("keys and values of a sequence", one, "B"),))


def _kv_over_weights(e: Entry) -> Derivation:
    """From how many sequences on the caches outweigh the weights."""
    one, weights = _cache(e), params_bytes(e)
    lines = (Line("one cache", one, "B"), Line("weights", weights, "B"))
    return Derivation({"bytes": one, "count_exceeding_weights": weights // one + 1}, lines)


def _most_in_memory(e: Entry) -> Derivation:
    on = slice_of(e)
    memory, weights = on.num_chips * hbm_bytes(on.chip), params_bytes(e)
    one = _cache(e)
    lines = (Line("HBM", memory, "B"), Line("weights", weights, "B"), Line("one cache", one, "B"))
    return Derivation({"max_batch": (memory - weights) // one}, lines)


RECIPES: Mapping[str, Recipe] = {
    "tpus.q1_200b_load": _weights_read,
    "tpus.q6_hbm": _weights_read,
    "inference.bcrit_rule": critical_batches,
    "inference.prefill_attn_bound": _attention_bound,
    "inference.pq_30b_small": decode_step,
    "inference.pq_30b_256": decode_step,
    **{
        f"inference.llama13b_table_{kind}_b{batch}": decode_step
        for kind in ("mha", "gqa5")
        for batch in (1, 8, 16, 32, 64, 240)
    },
    "inference.prefill_tp_limit": _ring_divisor,
    "inference.decode_tp_limit": decode_ways,
    "inference.prefix_cache_example": _prefix,
    "inference.spec_decode_fig": _look_ahead,
    "inference.q2_max_batch": _most_sequences,
    "inference.q3_load_time": _weights_read,
    "inference.q6_expert_sharding": _weights_read,
    "inference.q7_2d_xopt": _best_2d,
    "inference.q7_2d_breakeven": _even_2d,
    "inference.appA_layer_time": _two_matrices,
    "inference.tp_typical_ways": _typical_ways,
    "transformers.kv_8k_mha": _kv_of_a_sequence,
    "transformers.q1_kv": _kv_per_token,
    "inference.llama13b_kv_8k": _kv_over_weights,
    "inference.llama13b_oom": _most_in_memory,
    "inference.q1_kv": _kv_per_token,
    "applied_inference.kv_per_token_70b": _kv_per_token,
    "applied_inference.kv_32k_seq": _kv_of_a_batch,
    "applied_inference.kv_size_columns": _kv_per_token,
}

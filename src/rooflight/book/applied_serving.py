"""Recipes of chapter 8: Llama 3 70B on v5e, from memory to requests per second."""

import math
from collections.abc import Mapping

from rooflight.book.derivation import Derivation, Line, Recipe, asked, mesh_of, slice_of
from rooflight.book.entry import Entry, Value
from rooflight.book.inference import (
    critical_batches,
    decode_step,
    decode_ways,
    power_of_two,
    ring_ways,
    step_lines,
    totals_of,
)
from rooflight.costs.network import collective_time
from rooflight.costs.roofline import contraction_time, hiding_intensity
from rooflight.dtypes import DTYPES
from rooflight.hardware.slice import parse_slice
from rooflight.models.graph.build import model_graph
from rooflight.models.presets import load_model
from rooflight.plan.serving.simulate.replay import slice_name
from rooflight.plan.serving.step.totals import (
    Totals,
    ended_per_step,
    generate_ways,
    requests_per_s,
    slices_ratio,
)


def _chips_held(e: Entry) -> Derivation:
    """Chips that hold weights and caches, and the smallest slice that has them."""
    totals = totals_of(e)
    batch, context = e.number("batch"), e.number("ctx")
    kv = totals.held_bytes(batch, context) - totals.weight_bytes
    chips = totals.fewest_chips(batch, context)
    shape = parse_slice(slice_name(totals.on.chip.name, power_of_two(chips))).shape
    found: dict[str, Value] = {"weights": totals.weight_bytes, "kv": kv, "kv_total": kv}
    found |= {"total": kv + totals.weight_bytes, "chips": chips, "slice": shape[::-1]}
    found |= {"kv_per_token": totals.kv_bytes_per_token, "min_chips": power_of_two(chips)}
    lines = (Line("caches", kv, "B"), Line("weights", totals.weight_bytes, "B"))
    return asked(e, found, lines)


def _step_of_bytes(e: Entry) -> Derivation:
    """A step that reads so many bytes, and the tokens that a batch then makes."""
    totals = totals_of(e)
    step = totals.generate(e.number("batch") if "batch" in e.inputs else 1, 0)
    found: dict[str, Value] = {"step": step.hbm_s, "tok_s": step.tokens / step.hbm_s}
    found["tok_s_chip"] = step.tokens / step.hbm_s / totals.on.num_chips
    if "decode" in e.inputs:
        found["decode_s"] = step.hbm_s * e.number("decode")
    return asked(e, found, step_lines(step))


def _ways_on_two_rings(e: Entry) -> Derivation:
    mesh = mesh_of(e)
    both = sum(r.bytes_per_s for r in mesh.group("XY").rings)
    ways = e.number("F") / hiding_intensity(mesh.slice.chip, "bf16", bytes_per_s=both)
    return Derivation({"Y": ways}, (Line("both rings, both ways", both, "B/s"),))


def _smallest_slice(e: Entry) -> Derivation:
    """What the weights leave of a slice, in caches; and what those make of it."""
    totals, context = totals_of(e), e.number("ctx")
    free = totals.hbm_bytes - totals.weight_bytes
    caches = totals.most_sequences(context)
    found: dict[str, Value] = {"param_bytes": totals.weight_bytes, "remaining": free}
    found |= {"min_chips": totals.fewest_chips(0, 0), "slice_chips": totals.on.num_chips}
    found |= {"remaining_hbm": free, "kv_caches_8k": caches, "batch": caches}
    if "step" in e.inputs:
        step_s, output = e.number("step"), e.number("decode")
        found["qps"] = requests_per_s(batch=caches, step_s=step_s, output=output)
    one = context * totals.kv_bytes_per_token
    return asked(e, found, (Line("HBM", totals.hbm_bytes, "B"), Line("one cache", one, "B")))


def _requests(e: Entry) -> Derivation:
    batch, step_s, output = (e.number(n) for n in ("batch", "step", "decode"))
    rate = requests_per_s(batch=batch, step_s=step_s, output=output)
    found: dict[str, Value] = {"qps": rate}
    if "on" in e.inputs:
        found["qps_chip"] = rate / slice_of(e).num_chips
    return asked(e, found, (Line("a whole answer", step_s * output, "s"),))


def _one_matmul(e: Entry) -> Derivation:
    """[B,D] x [D,F / Y] of a chip: its weights, its FLOPs, and gathering its input."""
    mesh, dtype = mesh_of(e), DTYPES["bf16"]
    b, d, f = e.whole("B"), e.whole("D"), e.whole("F") // e.whole("Y")
    op = contraction_time(
        mesh.slice.chip, flops=2.0 * b * d * f, bytes_moved=dtype.nbytes(d * f), compute="bf16"
    )
    math_s, hbm_s = (roof.seconds for roof in op.roofs)
    gather = collective_time("all_gather", dtype.nbytes(b * d), mesh.group("X"))
    values: dict[str, Value] = {"t_ici": gather.rule_s, "t_hbm": hbm_s, "t_math": math_s}
    return Derivation(values, (Line("weights of a chip", dtype.nbytes(d * f), "B"),))


def _prompt(e: Entry) -> Derivation:
    totals = totals_of(e)
    seconds = totals.prefill_s(e.number("tokens"), mfu=e.number("mfu"))
    return Derivation({"t": seconds}, (Line("peak", totals.flops_per_s, "FLOP/s"),))


def _evicted(e: Entry) -> Derivation:
    ended = ended_per_step(batch=e.number("batch"), output=e.number("decode"))
    length = e.number("prefill") + e.number("decode")
    values: dict[str, Value] = {"seqs_per_step": ended, "tokens_per_step": ended * length}
    return Derivation(values, (Line("positions of an ended sequence", length, "token"),))


def _slices(e: Entry) -> Derivation:
    step_s, output, batch = (e.number(n) for n in ("step", "decode", "batch"))
    ratio = slices_ratio(prefill_s=e.number("prefill_s"), step_s=step_s, output=output, batch=batch)
    line = Line("sequences that a generate slice ends", batch / (step_s * output), "1/s")
    return Derivation({"ratio": ratio}, (line,))


def _latency_range(e: Entry) -> Derivation:
    """A step with no cache to read, and one that reads all of HBM."""
    totals = totals_of(e)
    least = totals.generate(1, 0).hbm_s
    full = Totals(totals.on, 0, totals.hbm_bytes).generate(1, 0).hbm_s
    return Derivation({"lo": least, "hi": full}, (Line("HBM", totals.hbm_bytes, "B"),))


def _cache_over_flops(e: Entry) -> Derivation:
    """The context at which a sequence's cache takes as long as its FLOPs; chips cancel."""
    one = totals_of(e).generate(1, 1)
    return Derivation({"ctx": one.matmul_s / one.kv_s}, step_lines(one))


def _stride(e: Entry) -> Derivation:
    """Batches that fit, found at one stride and plotted at another."""
    totals = totals_of(e)
    fits = totals.most_sequences(e.number("ctx"))
    found, plotted = (e.whole(n) for n in ("search_stride", "slice_stride"))
    count = len(range(1, fits + 1, found))
    lines = (
        Line("the largest batch that fits", fits, "sequences"),
        Line("the largest that is plotted", range(1, fits + 1, plotted)[count - 1], "sequences"),
    )
    return Derivation({"undercount": found / plotted}, lines)


def _forward_of_a_token(e: Entry) -> Derivation:
    """Chip-seconds of one token's FLOPs, and of reading the weights in two dtypes."""
    on, params = slice_of(e), e.number("params")
    bf16, int8 = (
        Totals(on, params, DTYPES[d].nbytes(int(params))).generate(1, 0) for d in ("bf16", "int8")
    )
    found: dict[str, Value] = {"flops": bf16.matmul_s * on.chip.peak_flops("bf16")}
    found |= {"t_flops_x_N": bf16.matmul_s, "t_hbm_bf16_x_N": bf16.weights_s}
    found["t_hbm_int8_x_N"] = int8.weights_s
    return Derivation(found, step_lines(bf16))


def _slices_under_a_limit(e: Entry) -> Derivation:
    values: dict[str, Value] = {"chips_to_fit": totals_of(e).fewest_chips(0, 0)}
    lines: list[Line] = []
    for name in e.expected:
        if name.startswith("step_"):
            step_s = totals_of(e, on=name.removeprefix("step_")).generate(1, 0).hbm_s
            values[name] = step_s
            limit = e.number("limit")
            lines.append(Line(f"{name}: {'meets' if step_s <= limit else 'misses'} it", limit, "s"))
    return Derivation(values, tuple(lines))


def _useful_ways(e: Entry) -> Derivation:
    """Powers of two: what one ring allows a prompt, and what HBM allows a batch."""
    inner = model_graph(load_model(e.text("wide"))).sizes["F"]
    few = ring_ways(e, e.text("wide"))
    many = generate_ways(inner=inner, batch=e.number("B"), hbm_over_ici=e.number("beta"))
    values: dict[str, Value] = {
        n: 2 ** math.floor(math.log2(w)) for n, w in (("lo", few), ("hi", many))
    }
    return Derivation(values, (Line("prefill", few, "ways"), Line("generate", many, "ways")))


RECIPES: Mapping[str, Recipe] = {
    f"applied_inference.{name}": recipe
    for name, recipe in {
        "chips_for_bs240_32k": _chips_held,
        "bs32_memory": _chips_held,
        "bs32_step_4x2": _step_of_bytes,
        "bs32_step_4x4": _step_of_bytes,
        "ici_bound_70b_2axes": _ways_on_two_rings,
        "bcrit_table": critical_batches,
        "min_topology_bf16": _smallest_slice,
        "min_topology_int8": _smallest_slice,
        "min_topology_int4": _smallest_slice,
        "full_hbm_step": _step_of_bytes,
        "int4_min_latency": _step_of_bytes,
        "qps_total": _requests,
        "qps_chip_bf16": _requests,
        "qps_chip_int8": _requests,
        "qps_chip_int4": _requests,
        "double_topology_batch": _smallest_slice,
        "double_qps_bf16": _requests,
        "double_qps_int8": _requests,
        "double_qps_int4": _requests,
        "decode_tp_bs64": decode_ways,
        "decode_4x8_times": _one_matmul,
        "prefill_8k": _prompt,
        "eviction": _evicted,
        "disagg_ratio": _slices,
        "pareto_latency_floor": _latency_range,
        "pareto_plateau_2k": decode_step,
        "kv_vs_flops_ctx": _cache_over_flops,
        "roofline_code_stride": _stride,
        "ex1_405b_fwd": _forward_of_a_token,
        "ex2_8b_bs240": _chips_held,
        "ex3_405b_v5e": _slices_under_a_limit,
        "tp_useful_range": _useful_ways,
    }.items()
}

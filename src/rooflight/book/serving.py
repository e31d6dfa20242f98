"""Recipes of chapters 4 and 7 and of the slides: attention, mixtures, latency of small arrays."""

from collections.abc import Mapping

from rooflight.algebra.notation import parse_tensor
from rooflight.algebra.shapes import device_bytes
from rooflight.book.chapter1 import batch_from_which_flops_bind
from rooflight.book.chapter3 import hop_break_even
from rooflight.book.derivation import Derivation, Line, Recipe, dims_of, slice_of
from rooflight.book.entry import Entry
from rooflight.costs.network import permute_time
from rooflight.costs.roofline import attention_intensity, memory_bytes_per_s, moe_critical_batch
from rooflight.hardware.mesh import parse_mesh


def _attention(e: Entry) -> Derivation:
    group, prompt, context = e.whole("G"), e.whole("T"), e.whole("S")
    prefill = attention_intensity(q_len=prompt, kv_len=prompt, group=group)
    decode = attention_intensity(q_len=1, kv_len=context, group=group)
    lines = (
        Line(f"{prompt} queries on as many keys", prefill, "FLOP/B"),
        Line(f"one query on {context} keys", decode, "FLOP/B"),
    )
    return Derivation({"prefill": prefill, "decode": decode}, lines)


def _mixture(e: Entry) -> Derivation:
    experts, active = e.whole("experts"), e.whole("active")
    batch = moe_critical_batch(e.number("dense"), experts=experts, active=active)
    line = Line(f"an expert sees {active} of {experts} parts of the batch", batch, "token")
    return Derivation({"b_crit": batch}, (line,))


def _hbm_over_ring(e: Entry) -> Derivation:
    values: dict[str, float] = {}
    lines: list[Line] = []
    for name in e.inputs:
        on = slice_of(e, name)
        ring = parse_mesh("X=16,Y=16", on=on).group("X").rings[0]
        hbm = memory_bytes_per_s(on.chip)
        values[name] = hbm / ring.bytes_per_s
        lines += [
            Line(f"HBM of {on.chip.title}", hbm, "B/s"),
            Line(f"one ring of {on.chip.title}, both ways", ring.bytes_per_s, "B/s"),
        ]
    return Derivation(values, tuple(lines))


def _latency_bytes(e: Entry) -> Derivation:
    per_hop, shards = hop_break_even(slice_of(e)), e.whole("shards")
    line = Line("bytes of a hop that take as long as its latency", per_hop, "B")
    return Derivation({"bytes": per_hop * shards}, (line,))


def _activation_bytes(e: Entry) -> int:
    tensor = parse_tensor(e.text("tensor"))
    return device_bytes(tensor, dims_of(e, tensor), {}, e.dtype())


def _small_activations(e: Entry) -> Derivation:
    nbytes = _activation_bytes(e)
    shard = nbytes / e.whole("shards")
    hop = permute_time(shard, slice_of(e), source=(0, 0), target=(0, 1))
    lines = (
        Line("bytes of the activations", nbytes, "B"),
        Line("a shard over one link", hop.bandwidth_s, "s"),
        Line(f"its flight; bound by {hop.binds}", hop.latency_s, "s"),
    )
    return Derivation({"bytes": nbytes, "latency_bound": hop.binds == "hop latency"}, lines)


def _shards_of_little(e: Entry) -> Derivation:
    nbytes, per_hop = _activation_bytes(e), hop_break_even(slice_of(e))
    lines = (
        Line("bytes of the activations", nbytes, "B"),
        Line("bytes of a hop that take as long as its latency", per_hop, "B"),
    )
    return Derivation({"Y": nbytes / per_hop}, lines)


RECIPES: Mapping[str, Recipe] = {
    "transformers.q4_attn_intensity": _attention,
    "transformers.q8_moe_bcrit": _mixture,
    "inference.attn_intensity": _attention,
    "inference.q5_moe_bcrit": _mixture,
    "inference.bcrit_h100_takeaway": batch_from_which_flops_bind,
    "inference.beta_values": _hbm_over_ring,
    "inference.appC_latency_bytes": _latency_bytes,
    "inference.appC_example": _small_activations,
    "inference.appC_takeaway": _shards_of_little,
    "slides.h100_bcrit": batch_from_which_flops_bind,
    "slides.v6e_bcrit_exercise": batch_from_which_flops_bind,
}

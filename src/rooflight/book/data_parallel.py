"""Recipes of chapters 5 and 6: batches that data parallelism and FSDP need."""

from collections.abc import Mapping

from rooflight.book.derivation import Derivation, Line, Recipe, asked, mesh_of, slice_of
from rooflight.book.entry import Entry, Value
from rooflight.book.layer import BookLayer, tokens_bound
from rooflight.hardware.mesh import parse_mesh


def data_layer(e: Entry) -> BookLayer:
    return BookLayer(e.text("layout"), backward=True)


def _data_parallel(e: Entry) -> Derivation:
    """Tokens that keep data parallelism or FSDP over axis X busy, and what follows for a batch."""
    mesh, layer = mesh_of(e), data_layer(e)
    needed = tokens_bound(layer, mesh)
    per_chip = needed / mesh.size("X")
    found: dict[str, Value] = {"tokens_per_chip": per_chip, "pod_batch": needed}
    found["min_batch"] = needed
    if "batch" in e.inputs:
        chips = e.number("batch") / per_chip
        found |= {"chips": chips, "pods": chips / mesh.slice.num_chips}
        found["fsdp_ok"] = e.number("batch") >= needed
    lines = (*layer.shown(mesh), Line("tokens per chip from which matmuls bind", per_chip, "token"))
    return asked(e, found, lines)


def _data_parallel_on_chips(e: Entry) -> Derivation:
    """The same on one ring of several chips; input `v5e` is a slice, `v5e_flops` its peak."""
    values: dict[str, Value] = {}
    lines: list[Line] = []
    for name in e.expected:
        rate, link = e.inputs[f"{name}_flops"], e.inputs[f"{name}_link"]
        on = slice_of(e.given(bf16_flops=rate, link_bytes_per_s=link), name)
        mesh = parse_mesh(f"X={on.shape[0]}@x,Y={on.num_chips // on.shape[0]}", on=on)
        values[name] = tokens_bound(data_layer(e), mesh) / mesh.size("X")
        lines.append(
            Line(f"one ring of {on.chip.title}", mesh.group("X").rings[0].bytes_per_s, "B/s")
        )
    return Derivation(values, tuple(lines))


def _tokens_of_a_chip(e: Entry) -> Derivation:
    """A batch spread over a slice, against what FSDP needs there."""
    mesh, layer = mesh_of(e), data_layer(e)
    needed, per_chip = tokens_bound(layer, mesh), e.number("batch") / mesh.slice.num_chips
    lines = (*layer.shown(mesh), Line("batch from which matmuls bind", needed, "token"))
    values: dict[str, Value] = {"tokens_per_chip": per_chip, "fsdp_ok": e.number("batch") >= needed}
    return Derivation(values, lines)


def _over_dcn(e: Entry) -> Derivation:
    mesh, layer = mesh_of(e), data_layer(e)
    per_pod = tokens_bound(layer, mesh, axis="P") / mesh.slice.num_slices
    fan = mesh.group("P").fans[0]
    lines = (*layer.shown(mesh), Line("a chip's share of a pod's DCN", fan.bytes_per_s, "B/s"))
    return Derivation({"tokens_per_pod": per_pod}, lines)


RECIPES: Mapping[str, Recipe] = {
    "training.dp_threshold_v5p_1axis": _data_parallel,
    "training.dp_threshold_v5p_3axis": _data_parallel,
    "training.dp_threshold_other_chips": _data_parallel_on_chips,
    "training.deepseek_v2_chips": _data_parallel,
    "training.llama70b_bs2m_fsdp": _data_parallel,
    "training.dcn_threshold": _over_dcn,
    "training.q3_fsdp_min_batch": _data_parallel,
    "applied_training.per_chip_tokens": _tokens_of_a_chip,
}

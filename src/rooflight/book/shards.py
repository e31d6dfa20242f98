"""Recipes about what one device holds: shapes and bytes of shards, chapters 3, 9 and 10."""

import math
from collections.abc import Mapping
from dataclasses import replace

from rooflight.algebra.contract import strategies
from rooflight.algebra.notation import parse_contraction, parse_tensor
from rooflight.algebra.shapes import device_bytes, local_shape, total_bytes, ways
from rooflight.book.derivation import Derivation, Line, Recipe, chip_of, dims_of
from rooflight.book.entry import Entry, Value
from rooflight.costs.roofline import memory_bytes_per_s
from rooflight.costs.tiling import padded_shape
from rooflight.units import parse_sizes


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

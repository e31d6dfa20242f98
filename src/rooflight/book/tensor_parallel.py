"""Recipes of chapter 5: ways of tensor parallelism, and what each scheme sends."""

import math
from collections.abc import Mapping

from rooflight.book.derivation import Derivation, Line, Recipe, asked, chip_of, mesh_of
from rooflight.book.entry import Entry, Value
from rooflight.book.layer import LARGEST, MATMULS, BookLayer, Law, cube, on_a_cube, root
from rooflight.dtypes import DTYPES
from rooflight.hardware.chip import Chip
from rooflight.models.graph.build import model_graph
from rooflight.models.presets import load_model

_ONE: Mapping[str, float] = dict.fromkeys("BDFXY", 1.0)


def _tensor_laws(chip: Chip, dtype: str = "bf16") -> Mapping[str, Law]:
    return on_a_cube(BookLayer("tp=Y", forward=True, dtype=DTYPES[dtype]), chip)


def _most_ways(laws: Mapping[str, Law], inner: float) -> float:
    """Ways of tensor parallelism at which collectives begin to take longer than matmuls."""

    def spare_s(y: float) -> float:
        sizes = {**_ONE, "F": inner, "Y": y}
        return laws[MATMULS].at(sizes) - laws["Y"].at(sizes)

    return root(spare_s, 1 / LARGEST, LARGEST)


def _least_inner(laws: Mapping[str, Law], ways: float) -> float:
    """The width F that so many ways need."""

    def spare_s(inner: float) -> float:
        sizes = {**_ONE, "F": inner, "Y": ways}
        return laws[MATMULS].at(sizes) - laws["Y"].at(sizes)

    return root(spare_s, 1 / LARGEST, LARGEST)


def _tensor_parallel(e: Entry) -> Derivation:
    laws = _tensor_laws(chip_of(e))
    most = _most_ways(laws, e.number("F"))
    found: dict[str, Value] = {"Y": most, "Y_max": most, "ok_8": most >= 8, "ok_16": most >= 16}
    found["F_for_8way"] = _least_inner(laws, 8)
    lines = (Line("F that one way needs, on one ring", _least_inner(laws, 1), "elements"),)
    return asked(e, found, lines)


def _typical_ways(e: Entry) -> Derivation:
    """The largest power of two that a narrow and a wide model allow."""
    laws, lines, values = _tensor_laws(chip_of(e)), list[Line](), dict[str, Value]()
    for name in ("lo", "hi"):
        model = e.text(name)
        most = _most_ways(laws, model_graph(load_model(model)).sizes["F"])
        values[name] = 2 ** math.floor(math.log2(most))
        lines.append(Line(f"ways at which {model} is bound by the network", most, "ways"))
    return Derivation(values, tuple(lines))


def _intensity(e: Entry) -> Derivation:
    """FLOPs for each byte on a ring; the ways it allows depend on no dtype."""
    mesh, dtype = mesh_of(e), e.text("dtype")
    chip = mesh.slice.chip
    rate, ring = chip.peak_flops(dtype), mesh.group("X").rings[0].bytes_per_s
    lines = (
        Line(f"{dtype} rate of {chip.title}", rate, "FLOP/s"),
        Line("one ring", ring, "B/s"),
        *(
            Line(f"F that one way needs in {d}", _least_inner(_tensor_laws(chip, d), 1), "elements")
            for d in ("bf16", dtype)
        ),
    )
    return Derivation({"alpha_int8": rate / ring}, lines)


def _bytes_table(e: Entry) -> Derivation:
    """What a layer sends, as multiples of BD or DF: the law at sizes of one, times bandwidth."""
    chip = chip_of(e)
    rings = {a: cube(chip, {"X": 16, "Y": 4}).group(a).rings for a in "XY"}
    rate = {axis: sum(r.bytes_per_s for r in rings[axis]) for axis in "XY"}
    rows = {
        "dp": ("dp=X", {"": "X"}),
        "fsdp": ("fsdp=X", {"": "X"}),
        "tp": ("tp=Y", {"": "Y"}),
        "mixed": ("fsdp=X,tp=Y", {"_act": "Y", "_w": "X"}),
    }
    values: dict[str, Value] = {}
    for name, (layout, axes) in rows.items():
        for way in ("fwd", "bwd"):
            layer = BookLayer(layout, forward=way == "fwd", backward=way == "bwd")
            laws = on_a_cube(layer, chip)
            for suffix, axis in axes.items():
                sent = laws[axis].at(_ONE) * rate[axis] if axis in laws else 0.0
                values[f"{name}_{way}{suffix}"] = sent
    lines = tuple(Line(f"{n.replace('_', ' ')}, B = D = F = 1", v, "B") for n, v in values.items())
    return Derivation(values, lines)


RECIPES: Mapping[str, Recipe] = {
    "training.tp_limit_rule": _tensor_parallel,
    "training.tp_llama70b": _tensor_parallel,
    "training.tp_gemma7b": _tensor_parallel,
    "training.tp_int8_intensity": _intensity,
    "training.tp_typical_ways": _typical_ways,
    "training.comms_table": _bytes_table,
}

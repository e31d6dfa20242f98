"""Recipes about training: its state, its saved activations, and FLOPs for a dollar.

State is what the book counts of a parameter in training: its weight and Adam's two moments.
"""

import math
from collections.abc import Mapping

from rooflight.algebra.notation import parse_tensor
from rooflight.algebra.shapes import device_bytes
from rooflight.book.derivation import Derivation, Line, Recipe, chip_of, slice_of
from rooflight.book.entry import Entry, Value
from rooflight.book.models import model_of
from rooflight.dtypes import DTYPES
from rooflight.hardware.chip import Chip
from rooflight.models.graph.build import model_graph
from rooflight.models.graph.count import dim_sizes, elements
from rooflight.plan.training.questions.budget import Terms

_MOMENTS = 2


def params_bytes(e: Entry) -> int:
    """The weights of a question that gives a number of parameters."""
    return e.dtype("weight").nbytes(e.whole("params"))


def _moments_bytes(e: Entry) -> int:
    return _MOMENTS * e.dtype("moment").nbytes(e.whole("params"))


def _bytes_per_param(e: Entry) -> int:
    return e.dtype("weight").nbytes(1) + _MOMENTS * e.dtype("moment").nbytes(1)


def hbm_bytes(chip: Chip) -> int:
    """The HBM of a chip that has one."""
    assert chip.hbm_bytes is not None, f"{chip.title} has no HBM in its catalog"
    return chip.hbm_bytes


def _adam(e: Entry) -> Derivation:
    weight, moment = (e.dtype(n).nbytes(1) for n in ("weight", "moment"))
    lines = (Line("weight", weight, "B/param"), Line("each moment", moment, "B/param"))
    return Derivation({"bytes": _bytes_per_param(e)}, lines)


def _largest_model(e: Entry) -> Derivation:
    """Parameters whose state fills the HBM of a chip; `params` is asked of input `chip`."""
    each = _bytes_per_param(e)
    chips = {name: chip_of(e, "chip" if name == "params" else name) for name in e.expected}
    values: dict[str, Value] = {name: hbm_bytes(chip) / each for name, chip in chips.items()}
    held = tuple(Line(f"HBM of {chip.title}", hbm_bytes(chip), "B") for chip in chips.values())
    return Derivation(values, (*held, Line("state", each, "B/param")))


def _weights(e: Entry) -> Derivation:
    nbytes = params_bytes(e)
    return Derivation({"bytes": nbytes}, (Line("weights", nbytes, "B"),))


def _state(e: Entry) -> Derivation:
    weights, moments = params_bytes(e), _moments_bytes(e)
    lines = (Line("weights", weights, "B"), Line("both moments", moments, "B"))
    return Derivation({"bytes": weights + moments}, lines)


def _state_on_chips(e: Entry) -> Derivation:
    """How many chips the state fills, and how many nodes those are."""
    found, on = _state(e), slice_of(e)
    chips = math.ceil((params_bytes(e) + _moments_bytes(e)) / hbm_bytes(on.chip))
    nodes = math.ceil(chips / on.chip.host_chips)
    lines = (*found.lines, Line("HBM", hbm_bytes(on.chip), "B"))
    return Derivation({**found.values, "gpus": chips, "nodes": nodes}, lines)


def _state_under_tp(e: Entry) -> Derivation:
    on = slice_of(e)
    per_chip = (params_bytes(e) + _moments_bytes(e)) / on.num_chips
    lines = (Line("state of a chip", per_chip, "B"), Line("HBM", hbm_bytes(on.chip), "B"))
    return Derivation({"per_gpu": per_chip, "fits": per_chip <= hbm_bytes(on.chip)}, lines)


def _zero(e: Entry) -> Derivation:
    """What a device holds when parts of the state are split over the data axis X."""
    sizes, axes = {"P": e.whole("params")}, {"X": e.whole("ways")}
    # The optimizer has a full copy of the weights besides its moments.
    parts = {"weights": ("f16", 1), "gradients": ("f16", 1), "optimizer": ("f32", 1 + _MOMENTS)}

    def held(text: str) -> list[int]:
        tensor = parse_tensor(text)
        return [n * device_bytes(tensor, sizes, axes, DTYPES[d]) for d, n in parts.values()]

    whole, split = held("w[P]"), held("w[P_X]")
    names = ("dp", "zero1", "zero2", "zero3")  # splits no part, the last, the last two, all
    kept = {name: len(parts) - i for i, name in enumerate(names)}
    values: dict[str, Value] = {n: sum(whole[:k]) + sum(split[k:]) for n, k in kept.items()}
    lines = [Line(f"{part}, whole", n, "B") for part, n in zip(parts, whole, strict=True)]
    lines += [Line(f"{part}, split", n, "B") for part, n in zip(parts, split, strict=True)]
    return Derivation(values, tuple(lines))


def _saved_bytes(e: Entry, saved: int) -> int:
    """Arrays of tokens x D that every layer keeps."""
    sizes = {"L": e.whole("L"), "B": e.whole("tokens"), "D": e.whole("D")}
    return saved * device_bytes(parse_tensor("x[L,B,D]"), sizes, {}, e.dtype())


def _checkpoints(e: Entry) -> Derivation:
    one = _saved_bytes(e, 1)
    line = Line("one array of every layer, x[L,B,D]", one, "B")
    return Derivation({"bytes": _saved_bytes(e, e.whole("saved"))}, (line,))


def _matmul_outputs(e: Entry) -> Derivation:
    ops = [op for op in model_graph(model_of(e)).ops if op.block == 0 and op.kind == "matmul"]
    lines = tuple(Line(str(op.contraction), 1, "tensor") for op in ops)
    return Derivation({"saved": len(ops)}, lines)


def _training_memory(e: Entry) -> Derivation:
    values: dict[str, Value] = {"params": params_bytes(e), "optimizer": _moments_bytes(e)}
    values["checkpoints"] = _saved_bytes(e, e.whole("saved"))
    total = params_bytes(e) + _moments_bytes(e) + _saved_bytes(e, e.whole("saved"))
    lines = tuple(Line(n, v, "B") for n, v in values.items())
    return Derivation({**values, "total": total}, lines)


def _fewest_chips(e: Entry) -> Derivation:
    chip = chip_of(e)
    chips = e.number("total") / hbm_bytes(chip)
    lines = (Line("all bytes", e.number("total"), "B"), Line("HBM", hbm_bytes(chip), "B"))
    return Derivation({"chips": math.ceil(chips)}, lines)


def _memory_of_a_chip(e: Entry) -> Derivation:
    """State and saved arrays, spread evenly."""
    chips, state = slice_of(e).num_chips, params_bytes(e) + _moments_bytes(e)
    saved = {name: int(name.removeprefix("ckpt")) for name in e.expected}
    values: dict[str, Value] = {n: (state + _saved_bytes(e, k)) / chips for n, k in saved.items()}
    lines = (Line("state", state, "B"), Line("a saved array", _saved_bytes(e, 1), "B"))
    return Derivation(values, lines)


def _mlp_outputs(e: Entry) -> int:
    """Bytes of what the feed-forward matmuls of all layers write."""
    graph = model_graph(model_of(e))
    sizes = dim_sizes(graph, batch=e.whole("tokens"), seq=1)
    written = [op for op in graph.ops if op.part == "mlp" and op.kind == "matmul"]
    return sum(
        op.count * e.dtype().nbytes(elements(op.contraction.result, sizes)) for op in written
    )


def _mlp_checkpoints(e: Entry) -> Derivation:
    nbytes = _mlp_outputs(e)
    return Derivation({"bytes": nbytes}, (Line("outputs of gate, in and out", nbytes, "B"),))


def _fully_sharded(e: Entry) -> Derivation:
    saved, state = _mlp_outputs(e), params_bytes(e) + _moments_bytes(e)
    per_chip = (saved + state) / slice_of(e).num_chips
    lines = (Line("outputs of gate, in and out", saved, "B"), Line("state", state, "B"))
    return Derivation({"act": saved, "total": saved + state, "per_chip": per_chip}, lines)


def _activation(e: Entry) -> Derivation:
    sizes = {"B": e.whole("tokens"), "D": e.whole("D")}
    nbytes = device_bytes(parse_tensor("x[B,D]"), sizes, {}, e.dtype())
    return Derivation({"bytes": nbytes}, (Line("x[B,D]", nbytes, "B"),))


def _flops_per_dollar(e: Entry) -> Derivation:
    own = e.number("dollars_per_hour") if "dollars_per_hour" in e.inputs else None
    terms = Terms(slice_of(e), mfu=1.0, price=own)
    bought, price = terms.flops_per_dollar, terms.dollars_per_chip_hour
    assert bought is not None and price is not None, f"{e.id}: no price"
    lines = (Line("peak", terms.flops_per_s, "FLOP/s"), Line("price", price, "USD/h"))
    return Derivation({"flops_per_usd": bought}, lines)


RECIPES: Mapping[str, Recipe] = {
    "transformers.ckpt_all": _checkpoints,
    "transformers.ckpt_block": _checkpoints,
    "transformers.ckpt_big_matmuls": _matmul_outputs,
    "training.adam_bytes": _adam,
    "training.dp_max_params_v5p": _largest_model,
    "training.q2_state_bytes": _state,
    "training.q2_activations": _mlp_checkpoints,
    "training.q3_fsdp_memory": _fully_sharded,
    "training.zero_figure": _zero,
    "applied_training.llama70b_train_memory": _training_memory,
    "applied_training.llama70b_min_chips": _fewest_chips,
    "applied_training.llama70b_per_chip_mem": _memory_of_a_chip,
    "inference.llama13b_train_mem_claim": _state,
    "inference.llama13b_weights": _weights,
    "inference.llama13b_activation": _activation,
    "applied_inference.flops_per_dollar_h100": _flops_per_dollar,
    "applied_inference.flops_per_dollar_v5p": _flops_per_dollar,
    "applied_inference.flops_per_dollar_v5e": _flops_per_dollar,
    "gpus.quiz5_q2_min_gpus": _state_on_chips,
    "gpus.quiz5_q2_memory": _state_under_tp,
    "slides.dp_max_params": _largest_model,
}

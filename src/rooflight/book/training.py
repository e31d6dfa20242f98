"""Recipes about training: its state, its saved activations, and FLOPs for a dollar.

State is what the book counts of a parameter in training: its weight and Adam's two moments.
"""

import math
from collections.abc import Mapping

from rooflight.algebra.notation import parse_tensor
from rooflight.algebra.shapes import device_bytes
from rooflight.book.derivation import Derivation, Line, Recipe, asked, chip_of, mesh_of, slice_of
from rooflight.book.entry import Entry, Value
from rooflight.book.layer import tokens_bound
from rooflight.book.mixed_parallel import data_layer, pods_bounds
from rooflight.book.models import model_of
from rooflight.dtypes import DTYPES
from rooflight.hardware.chip import Chip
from rooflight.models.graph.build import model_graph
from rooflight.models.graph.count import dim_sizes, elements
from rooflight.models.graph.utilisation import six_nd
from rooflight.models.layout.schedules import make_schedule
from rooflight.plan.training.questions.budget import Budget, Terms
from rooflight.plan.training.time.pipeline import SlotTimes, simulate_pipeline

_HOUR_S = 3600
_DAY_S = 24 * _HOUR_S
_YEAR_DAYS = 365

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


def _flops(e: Entry) -> float:
    """Of the run, or by the rule of thumb for its parameters and tokens."""
    if "flops" in e.inputs:
        return e.number("flops")
    return six_nd(e.number("params"), e.number("tokens"))


def _budget(e: Entry) -> Budget:
    return Budget(_flops(e), Terms(slice_of(e), mfu=e.number("mfu")))


def _run_lines(run: Budget) -> tuple[Line, ...]:
    return (
        Line("FLOPs of the run", run.flops, "FLOP"),
        Line(f"{run.terms.on} at an MFU of {run.terms.mfu:.0%}", run.terms.flops_per_s, "FLOP/s"),
    )


def _run(e: Entry) -> Derivation:
    """Seconds and days of a run on a slice, and what a batch leaves for each pod and chip."""
    run = _budget(e)
    found: dict[str, Value] = {"seconds": run.seconds, "days": run.days, "t": run.seconds}
    found["rate"] = run.terms.flops_per_s
    if "batch" in e.inputs:
        found["tokens_per_chip"] = e.number("batch") / run.terms.on.num_chips
    return asked(e, found, _run_lines(run))


def _run_on_a_count(e: Entry) -> Derivation:
    """The same on a number of chips that is no slice: the chip-hours of one, spread over them."""
    run, chips = _budget(e), e.number("chips")
    seconds = run.chip_hours * _HOUR_S / chips
    lines = (Line("FLOPs of the run", run.flops, "FLOP"), Line("chip-hours", run.chip_hours, "h"))
    return Derivation({"seconds": seconds, "days": seconds / _DAY_S}, lines)


def _run_of_a_batch(e: Entry) -> Derivation:
    """As many chips as FSDP keeps busy with a batch, and the days they take."""
    run, mesh = _budget(e), mesh_of(e)
    per_chip = tokens_bound(data_layer(e), mesh) / mesh.size("X")
    chips = e.number("batch") / per_chip
    days = run.chip_hours * _HOUR_S / chips / _DAY_S
    lines = (Line("tokens per chip that FSDP needs", per_chip, "token"), *_run_lines(run))
    return Derivation({"flops": run.flops, "chips": chips, "days": days}, lines)


def _run_on_fewer(e: Entry) -> Derivation:
    """What takes some days on one slice, on another."""
    at_peak = Terms(slice_of(e), mfu=1.0)
    work = at_peak.flops_per_s * e.number("days") * _DAY_S
    run = Budget(work, Terms(slice_of(e, "fewer"), mfu=1.0))
    lines = (Line("FLOPs of the run, at the same MFU", work, "FLOP"),)
    return Derivation({"days": run.days, "years": run.days / _YEAR_DAYS}, lines)


def _sequences(e: Entry) -> Derivation:
    sequences = e.whole("tokens") // e.whole("seq")
    return Derivation({"sequences": sequences}, (Line("tokens / seq", sequences, "sequences"),))


def _batch_of_pods(e: Entry) -> Derivation:
    on, batch = slice_of(e), e.number("batch")
    values = {"per_pod": batch / on.num_slices, "per_chip": batch / on.num_chips}
    return Derivation(values, (Line(f"chips of {on}", on.num_chips, "chips"),))


def _run_on_pods(e: Entry) -> Derivation:
    """A run over several pods: days, and what binds in a pod and between pods."""
    run, batch, needs = _budget(e), e.number("batch"), pods_bounds(e)
    on = run.terms.on
    per_pod, per_chip = batch / on.num_slices, batch / on.num_chips
    values: dict[str, Value] = {
        "tokens_per_chip": per_chip,
        "tokens_per_pod": per_pod,
        "days_40mfu": run.days,
        "dcn_ok": per_pod >= needs["dcn"],
        "ici_ok_overlap": per_chip >= needs["max"],
        "ici_ok_sum": per_chip >= needs["sum"],
    }
    lines = (
        *_run_lines(run),
        Line("tokens a pod that DCN needs", needs["dcn"], "token"),
        Line(
            "tokens per chip that mixed parallelism needs, halves side by side",
            needs["max"],
            "token",
        ),
        Line("the same, one after another", needs["sum"], "token"),
    )
    return Derivation(values, lines)


def _bubble(e: Entry) -> Derivation:
    table = make_schedule("gpipe", stages=e.whole("stages"), microbatches=e.whole("microbatches"))
    run = simulate_pipeline(table, SlotTimes(1, 1, 1))
    lines = (
        Line("slots from the first start to the last end", run.makespan_s, "slots"),
        Line("idle slots of a stage", run.bubble_s, "slots"),
    )
    return Derivation({"bubble": run.bubble}, lines)


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
    "training.llama70b_fsdp_17days": _run_of_a_batch,
    "training.ten_pods_2days": _run,
    "training.two_pods_bs2m": _batch_of_pods,
    "training.q3_seq_batch": _sequences,
    "training.q3_step_time": _run,
    "applied_training.llama70b_44days": _run,
    "applied_training.llama70b_225chips_days": _run_on_fewer,
    "applied_training.seq_batch_limit": _sequences,
    "applied_training.ex1_70b_4pods": _run_on_pods,
    "applied_training.ex2_405b_8pods": _run,
    "slides.llama_17days": _run_on_a_count,
    "slides.pipeline_bubble": _bubble,
    "gpus.quiz5_q2_days": _run,
}

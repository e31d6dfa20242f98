"""Recipes about whole training runs: days, tokens of a chip, sequences, pods."""

from collections.abc import Mapping

from rooflight.book.data_parallel import data_layer
from rooflight.book.derivation import Derivation, Line, Recipe, asked, mesh_of, slice_of
from rooflight.book.entry import Entry, Value
from rooflight.book.layer import tokens_bound
from rooflight.book.mixed_parallel import pods_bounds
from rooflight.models.graph.utilisation import six_nd
from rooflight.models.layout.schedules import make_schedule
from rooflight.plan.training.questions.budget import Budget, Terms
from rooflight.plan.training.time.pipeline import SlotTimes, simulate_pipeline

_HOUR_S = 3600
_DAY_S = 24 * _HOUR_S
_YEAR_DAYS = 365


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

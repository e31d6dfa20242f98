"""The training planner: the fastest layouts that fit, as a `Plan` that stands alone.

In: a `Question`. Out: a `Search` with at least one candidate, or an error that says what to change;
`plan_record` writes it down.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import rooflight
from rooflight.dtypes import Dtype
from rooflight.errors import RooflightError, UsageError
from rooflight.hardware.slice import Slice
from rooflight.models.graph.ops import Graph
from rooflight.models.spec import ModelSpec
from rooflight.plan.file.record import (
    Alternative,
    Decision,
    ForecastTime,
    MemoryUse,
    Mfu,
    Plan,
    Time,
)
from rooflight.plan.training.forecast.basis import blocks_of
from rooflight.plan.training.forecast.evidence import evidence
from rooflight.plan.training.memory.framework import FRAMEWORKS, default_framework, parse_framework
from rooflight.plan.training.memory.job import parse_recipe
from rooflight.plan.training.search.candidate import Candidate, Question, Rank, counted_seconds
from rooflight.plan.training.search.run import Search, Watch, divides, search_training, why_behind
from rooflight.plan.training.time.stage_time import Overlap
from rooflight.units import format_count, format_seconds

_ROUNDED = 0.05  # that a batch may change by without being asked: 16M people write for 2**24

HBM_MARGIN = 0.08  # left free where no compiler was asked: fragments, buffers of collectives


def train_question(
    graph: Graph,
    on: Slice,
    batch: int,
    seq: int,
    dtype: Dtype,
    *,
    overlap: Overlap = "sum",
    recipe: str | None = None,
    framework: str | None = None,
    rank: Rank = "forecast",
    hbm_margin: float | None = None,
) -> Question:
    """A question with the defaults that people mean; None is the framework's own, or the margin.

    Ranked by the roofline it is the book's question: our own program, all of the HBM.
    """
    is_book = rank == "roofline"
    ours = FRAMEWORKS["rooflight"] if is_book else default_framework(on.chip)
    by = parse_framework(framework) if framework else ours
    margin = (0.0 if is_book else HBM_MARGIN) if hbm_margin is None else hbm_margin
    stored = parse_recipe(recipe or by.recipe)
    question = Question(graph, on, batch, seq, dtype, overlap, stored, framework=by, rank=rank)
    return replace(question, hbm_margin=margin)


def plan_training(question: Question, *, count: int = 8, watch: Watch | None = None) -> Search:
    """Searches every layout of the space; raises where none divides or none fits."""
    found = search_training(question, count=count, watch=watch)
    if not found.num_priced:
        raise _nothing_divides(question)
    if not found.candidates:
        raise RooflightError(
            f"none of the {format_count(found.num_priced)} layouts that divide fits"
            f" {question.on.chip.title}, even recomputing every layer",
            hint="use more chips or a smaller --batch; the verb fit shows what takes the memory",
        )
    return found


def nearest_batch(question: Question) -> int:
    """The nearest number of sequences that the odd factors of the slice divide.

    Widths, heads and contexts are powers of two times little, so an odd factor of the chips, such
    as the 5 and 7 of 8,960, has to split sequences, or layers.
    """
    unit = _batch_unit(question)
    return max(1, round(question.batch / unit)) * unit


def rounded_batch(question: Question, tokens: int) -> int:
    """Whole sequences within 5 % of the tokens: those that can be split in most ways.

    First come multiples of the odd factors of the slice, then those of most twos: 16 million tokens
    of 8,192 are 1,953.125 sequences, and 2,048 split over any slice where 1,953 split over none.
    """
    seq = question.seq
    least, most = math.ceil(tokens * (1 - _ROUNDED) / seq), int(tokens * (1 + _ROUNDED) / seq)
    odd, _ = _odd_and_twos(question.on.num_chips)
    twos = range(most.bit_length())[::-1]
    for unit in (factor * 2**k for factor in dict.fromkeys((odd, 1)) for k in twos):
        nearest = round(tokens / seq / unit) * unit
        if least <= nearest <= most and nearest:
            return nearest
    few = tokens // seq
    raise UsageError(
        f"a batch of {tokens:,} tokens is {tokens / seq:.1f} sequences of {seq:,}",
        hint=f"use {few * seq} or {(few + 1) * seq} tokens",
    )


def _odd_and_twos(number: int) -> tuple[int, int]:
    twos = (number & -number).bit_length() - 1
    return number >> twos, twos


def _batch_unit(question: Question) -> int:
    """The odd factors of the chips, and as many twos as the batch has room for."""
    odd, twos = _odd_and_twos(question.on.num_chips)
    twos = 2**twos
    unit = odd
    while 2 * unit <= question.batch and unit // odd < twos:
        unit *= 2
    return unit


def _nothing_divides(question: Question) -> UsageError:
    batch, unit = _batch_that_divides(question), _batch_unit(question)
    below = question.batch // unit * unit
    other = below if batch > question.batch else below + unit
    both = [batch]
    if 0 < other != batch and divides(replace(question, batch=other)):
        both = sorted((batch, other))
    sizes = " or ".join(f"--batch {b * question.seq}" for b in both)
    return UsageError(
        f"no layout divides {question.batch} sequences over the"
        f" {question.on.num_chips} chips of {question.on}",
        hint=f"use {' or '.join(map(str, both))} sequences: {sizes}",
    )


def _batch_that_divides(question: Question) -> int:
    """The nearest that suits the slice, doubled until some layout divides it.

    One whole sequence for every chip always does.
    """
    batch = nearest_batch(question)
    while batch % question.on.num_chips and not divides(replace(question, batch=batch)):
        batch *= 2
    return batch


def better_batch(question: Question, best: Candidate) -> tuple[int, Candidate] | None:
    """The nearest batch that suits the slice, and its best layout.

    None where the given batch suits it already or does as well, within 2 %. A layout that nobody
    measured the like of counts for less, as in the search.
    """
    batch = nearest_batch(question)
    if batch == question.batch:
        return None
    other = search_training(replace(question, batch=batch), count=1).candidates
    if not other:
        return None
    counted = [counted_seconds(question, c) for c in (other[0], best)]
    gain = (batch / counted[0]) / (question.batch / counted[1])
    return (batch, other[0]) if gain > 1.02 else None


def plan_record(
    model: ModelSpec, question: Question, found: Search, choices: tuple[Decision, ...] = ()
) -> Plan:
    """The best candidate as a record, the others as its alternatives."""
    q, best = question, found.candidates[0]
    stages = best.num_stages
    is_forecast = q.rank == "forecast"
    return Plan(
        version=rooflight.__version__,
        model=model,
        slice=str(q.on),
        batch=q.batch,
        seq=q.seq,
        dtype=q.dtype.name,
        recipe=q.recipe.name,
        overlap=q.overlap,
        layout=best.layout.text,
        mesh=str(best.mesh),
        stages=stages,
        schedule=best.micro.schedule if stages > 1 else None,
        microbatches=best.micro.count,
        virtual=best.micro.virtual,
        remat=best.remat.name,
        zero=1,
        time=_time(best, q),
        memory=_held(best),
        framework=q.framework.name,
        mfu=Mfu(best.mfu, "model FLOPs, causal attention"),
        tokens_per_s=q.batch * q.seq / best.step_s,
        binds=best.binds,
        choices=(*choices, *_choices(best, found)),
        alternatives=tuple(_alternative(question, c, best) for c in _others(found)),
        searched={
            "priced": found.num_priced,
            "too_large": found.num_too_large,
            "too_slow": found.num_too_slow,
            "unfit": found.num_unfit,
        },
        sources={
            "time": "calibrated" if is_forecast else "spec",
            "memory": "spec",
            "mfu": "calibrated" if is_forecast else "spec",
        },
    )


def _time(candidate: Candidate, question: Question) -> Time:
    time = candidate.time
    return Time(
        roofline_s=time.expected_s(question.overlap),
        lower_s=time.lower_s,
        upper_s=time.upper_s,
        matmuls_s=time.matmuls_s,
        recompute_s=time.recompute_s,
        bubble_s=time.bubble_s,
        collectives_s=dict(time.axes_s),
        waits_s=dict(time.waits_s),
        forecast=_forecast(candidate),
    )


def _forecast(candidate: Candidate) -> ForecastTime:
    said = candidate.forecast
    return ForecastTime(
        seconds=said.seconds,
        low_s=said.low_s,
        high_s=said.high_s,
        mfu=said.mfu,
        parts_s=said.breakdown.named,
        basis=said.basis.text,
    )


def _held(candidate: Candidate) -> MemoryUse:
    held = candidate.memory
    return MemoryUse(held.stage, held.parts, held.hbm_bytes)


def _choices(best: Candidate, found: Search) -> tuple[Decision, ...]:
    tried = f"the fastest that fits of {format_count(found.num_priced)} layouts that were priced"
    kept = f"{best.remat.help}: more does not fit, or is slower"
    remat = {
        "none": "everything that the backward pass reads fits",
        "dots": "keeping everything does not fit, or is slower",
        "block": "keeping more than the inputs of layers does not fit, or is slower",
    }
    return (
        Decision("layout", best.layout.text, tried),
        Decision("remat", best.remat.name, remat.get(best.remat.name, kept)),
        Decision("zero", "1", "optimizer state over all data axes costs no more traffic"),
    )


def _others(found: Search) -> Sequence[Candidate]:
    """All but the first; what is worth measuring may be none of the fastest few."""
    others, new = found.candidates[1:], found.worth_measuring
    return others if new is None or new in others else (*others, new)


def _alternative(question: Question, candidate: Candidate, best: Candidate) -> Alternative:
    close = ", too close to call" if is_close(question, candidate, best) else ""
    return Alternative(
        layout=candidate.layout.text,
        mesh=str(candidate.mesh),
        schedule=schedule_text(candidate),
        remat=candidate.remat.name,
        step_s=candidate.step_s,
        hbm_bytes=candidate.memory.total_bytes,
        because=_lost(candidate, best) + close,
    )


def is_close(question: Question, candidate: Candidate, best: Candidate) -> bool:
    """Whether measured pairs of layouts of one model were as far off as these two are apart."""
    within = evidence().paired[blocks_of(question.graph)].within
    apart = abs(math.log(candidate.step_s / best.step_s))
    return question.rank == "forecast" and apart < within


def _lost(candidate: Candidate, best: Candidate) -> str:
    """Why a candidate is not first."""
    ratio = candidate.step_s / best.step_s
    if ratio < 1 / 1.001:
        return f"takes {ratio:.3f} times as long: {why_behind(candidate, best)}"
    if ratio < 1.001:
        more = candidate.time.collectives_s("sum") - best.time.collectives_s("sum")
        if more <= 0:
            return "as fast"
        return f"as fast, but has {format_seconds(more)} more collectives to hide"
    if candidate.rank == "forecast":
        mine, others = candidate.forecast.breakdown.named, best.forecast.breakdown.named
        most = max(mine, key=lambda name: mine[name] - others[name])
        more = format_seconds(max(0.0, mine[most] - others[most]))
        return f"takes {ratio:.3f} times as long: {more} more of {most}"
    what = candidate.binds
    if candidate.time.bubble_s > best.time.bubble_s and what == "matmuls":
        what = "the bubble of its pipeline"
    return f"takes {ratio:.3f} times as long: bound by {what}"


def schedule_text(candidate: Candidate) -> str:
    """Microbatches, and the stages they pass: `8 microbatches`, `1f1b, 4 stages, 32 microbatches`.

    Nothing where the step is one piece.
    """
    micro, stages = candidate.micro, candidate.num_stages
    if stages == 1:
        return "" if micro.count == 1 else f"{micro.count} microbatches"
    virtual = f" x {micro.virtual}" if micro.virtual > 1 else ""
    return f"{micro.schedule}, {stages}{virtual} stages, {micro.count} microbatches"

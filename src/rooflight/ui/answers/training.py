"""A training plan as an `Answer`: the ranked layouts, why, and what a chip of the first holds.

In: a question and what its search found. Out: what terminal, page and browser show of it.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate

from rooflight.plan.file.record import Decision
from rooflight.plan.training.forecast.basis import blocks_of
from rooflight.plan.training.forecast.evidence import evidence
from rooflight.plan.training.search.candidate import (
    Candidate,
    Question,
    counted_seconds,
    extrapolation_of,
)
from rooflight.plan.training.search.constraint import placed_text
from rooflight.plan.training.search.plan import is_close, schedule_text
from rooflight.plan.training.search.run import Search
from rooflight.ui.answer import (
    Answer,
    Column,
    Fact,
    Picture,
    Table,
    Value,
    show_bytes,
    show_count,
    show_seconds,
    show_share,
)
from rooflight.ui.answers.fit import parts_table
from rooflight.units import format_count, format_seconds, format_si

_SPLIT, _PADDED = 8, 128  # a vocabulary that a node can split; what it is rounded up to


def plan_answer(
    title: str,
    question: Question,
    found: Search,
    choices: Sequence[Decision] = (),
    compiled: Sequence[str] = (),
) -> Answer:
    """The ranked layouts; `compiled` is a word of the compiler for each, if it was asked."""
    best = found.candidates[0]
    return Answer(
        sentences=(
            headline(title, question, best),
            *(f"{c.what} {c.value}: {c.because}" for c in choices),
            _counts(found),
        ),
        tables=(_candidates(question, found, compiled),),
        notes=(
            *_order(question, found),
            "",
            _why(question, best),
            *rests_on(best),
            *extrapolates(best),
            *_worth(found, best),
            _room(question, best),
            *_without_tensors(question),
        ),
    )


def _without_tensors(question: Question) -> Iterator[str]:
    """Why tensor parallelism is not among the layouts, and what would change that."""
    sizes, framework = question.graph.sizes, question.framework
    if sizes.get("K") == 1 and not framework.splits_queries:
        why = f"{framework.name} cannot split the model's one kv head; `--framework rooflight`"
        yield f"no tensor parallelism: {why} splits its queries, keys and values on every chip"
    if sizes["V"] % _SPLIT:
        why = f"no tensor parallelism by {_SPLIT}: the vocabulary of {sizes['V']:,} does not divide"
        yield f"{why}; pad it to {-(-sizes['V'] // _PADDED) * _PADDED:,}, as training frameworks do"


def _candidates(question: Question, found: Search, compiled: Sequence[str]) -> Table:
    is_forecast = question.rank == "forecast"
    columns = (
        Column("rank", ""),
        Column("layout", "layout", is_wide=True),
        Column("microbatches", "microbatches"),
        Column("step_s", "step", show_seconds),
        Column("mfu", "MFU", show_share),
        Column("matmuls_s", "matmuls", show_seconds),
        *([Column("exposed_s", "exposed", show_seconds)] if is_forecast else []),
        *([] if is_forecast else [Column("collectives_s", "collectives", show_seconds)]),
        Column("bubble_s", "bubble", show_seconds),
        *([Column("roofline_s", "roofline", show_seconds)] if is_forecast else []),
        Column("remat", "remat"),
        Column("hbm_bytes", "HBM", show_bytes),
        *([Column("compiled", "compiled")] if compiled else []),
    )
    rows = [(i, *_row(c)) for i, c in enumerate(found.candidates, 1)]
    words = compiled or [""] * len(rows)
    return Table(
        "candidates",
        "The fastest layouts that fit, best first",
        columns,
        tuple((*row, word)[: len(columns)] for row, word in zip(rows, words, strict=True)),
        marked=0,
        is_first=True,
        keep=("step", "layout", "MFU", "HBM", "compiled", "microbatches", "remat"),
    )


def _row(candidate: Candidate) -> tuple[Value, ...]:
    time, said = candidate.time, candidate.forecast.breakdown
    parts = (time.matmuls_s, time.collectives_s(candidate.overlap), time.bubble_s)
    if candidate.rank == "forecast":
        roofline_s = time.expected_s(candidate.overlap)
        parts = (said.matmuls_s, said.exposed_s, said.bubble_s, roofline_s)
    return (
        placed_text(candidate),
        candidate.micro.count,
        candidate.step_s,
        candidate.mfu,
        *(s or None for s in parts),
        candidate.remat.name,
        candidate.memory.total_bytes,
    )


def _order(question: Question, found: Search) -> Iterator[str]:
    """Why the first row may be slower than a later one."""
    first, *others = found.candidates
    faster = [(i, c) for i, c in enumerate(others, 2) if c.step_s < first.step_s]
    first_s = counted_seconds(question, first)
    near = [(c.step_s, i) for i, c in faster if counted_seconds(question, c) < first_s]
    if near:
        least_s, number = min(near)
        yield (
            f"row 1 comes before row {number}, which is forecast {1 - least_s / first.step_s:.1%}"
            " faster: of forecasts within 2 % the one with tensor parallelism inside a node comes"
            " first, then with the fewest chips per sequence, stages and axes, then the most room"
        )
    if question.rank == "forecast":
        yield from _ties(question, found.candidates)
    slowest_s = accumulate((c.step_s for c in found.candidates), max)
    new = {
        i: c.unseen
        for i, (c, s) in enumerate(zip(found.candidates, slowest_s, strict=True), 1)
        if c.step_s < s and c.unseen and not first.unseen
    }
    if new:
        what = ", ".join(dict.fromkeys(name for names in new.values() for name in names))
        doubt = math.expm1(extrapolation_of(question))
        yield (
            f"{_rows(list(new))}: forecast faster than a row before, but fewer than two measured"
            f" runs have {what}, so {doubt:.0%} is added in the ranking"
        )


def _ties(question: Question, found: Sequence[Candidate]) -> Iterator[str]:
    """The rows whose order to the first is not known."""
    pairs = evidence().paired[blocks_of(question.graph)]
    close = [i for i, c in enumerate(found[1:], 2) if is_close(question, c, found[0])]
    if close:
        yield (
            f"{_rows(close)}: too close to row 1 to call: of {pairs.pairs} measured pairs of"
            f" layouts of one model, 80 % were forecast within {math.expm1(pairs.within):.0%}"
        )


def _rows(numbers: Sequence[int]) -> str:
    """Row 2; rows 2-4, 7."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    shown = (f"{r[0]}-{r[-1]}" if len(r) > 1 else f"{r[0]}" for r in runs)
    return f"row{'s' if len(numbers) > 1 else ''} {', '.join(shown)}"


def _worth(found: Search, best: Candidate) -> Iterator[str]:
    """What would be the answer if somebody had measured its like."""
    new = found.worth_measuring
    if new:
        yield (
            f"worth measuring: {placed_text(new)} is forecast at {format_seconds(new.step_s)},"
            f" {1 - new.step_s / best.step_s:.1%} less, but fewer than two measured runs have"
            f" {', '.join(new.unseen)}"
        )


def _room(question: Question, best: Candidate) -> str:
    left, most = best.memory.headroom_bytes, best.memory.hbm_bytes
    margin = f" ({question.hbm_margin:.0%} kept free)" if question.hbm_margin else ""
    return (
        f"HBM: the first leaves {format_si(left, 'B')} of {format_si(most, 'B')}{margin}, a closed"
        f" form of what {question.framework.name} holds; the compiler has the last word"
        " (`rooflight verify --help`)"
    )


def rests_on(best: Candidate) -> Iterator[str]:
    """What a forecast was fitted to, and how far it was off; nothing where the roofline ranks."""
    if best.rank == "roofline":
        yield "ranked by the roofline: no overheads, every collective hidden that can be"
        return
    said = best.forecast
    one = said.basis.calibration
    error = f", median held-out error {one.median_error:.1%}" if one.rows else ""
    yield (
        f"forecast: {format_seconds(said.seconds)}, 80 % between {format_seconds(said.low_s)} and"
        f" {format_seconds(said.high_s)}, by {said.basis.text}{error}; roofline"
        f" {format_seconds(best.time.expected_s(best.overlap))}"
    )


def extrapolates(best: Candidate) -> Iterator[str]:
    """What of a layout nobody measured."""
    if best.unseen:
        what = ", ".join(best.unseen)
        yield f"extrapolates: fewer than two measured runs have {what}; the interval is wider"


def headline(title: str, question: Question, best: Candidate) -> str:
    """The answer in a sentence."""
    tokens = format_count(question.batch * question.seq)
    schedule = schedule_text(best)
    return (
        f"{title} on {question.on}, {tokens} tokens per step: {placed_text(best)},"
        f" {schedule + ', ' if schedule else ''}{format_seconds(best.step_s)}"
        f"{' at the roofline' if best.rank == 'roofline' else ''}, MFU {best.mfu:.1%}, bound by"
        f" {best.binds}"
    )


def _counts(found: Search) -> str:
    skipped = f", {format_count(found.num_too_slow)} meshes left out: FLOPs and bubble alone take"
    return (
        f"{format_count(found.num_priced)} layouts that divide were priced,"
        f" {format_count(found.num_too_large)} of them cannot fit"
        f"{skipped + ' longer' if found.num_too_slow else ''}"
    )


def _why(question: Question, best: Candidate) -> str:
    if best.rank == "forecast":
        shown = {k: s for k, s in best.forecast.breakdown.named.items() if s >= 1e-3 * best.step_s}
        return "why: " + ", ".join(f"{format_seconds(s)} of {name}" for name, s in shown.items())
    time, overlap = best.time, question.overlap
    matmuls = format_seconds(time.matmuls_s)
    extra = f" ({format_seconds(time.recompute_s)} recomputed)" if time.recompute_s else ""
    collectives = format_seconds(time.collectives_s(overlap))
    bubble = f", then {format_seconds(time.bubble_s)} of bubble" if time.bubble_s else ""
    return (
        f"why: {matmuls} of matmuls{extra} against {collectives} of collectives,"
        f" which overlap{bubble}; nothing overlapped it takes {format_seconds(time.upper_s)}"
    )


def facts_of(asked: Question, best: Candidate) -> tuple[Fact, ...]:
    """The numbers at the head of the page."""
    held, said = best.memory, best.forecast
    expected = "the roofline bound"
    if best.rank == "forecast":
        expected = f"80 % between {format_seconds(said.low_s)} and {format_seconds(said.high_s)}"
    rate = asked.batch * asked.seq / best.step_s
    used = f"{held.total_bytes / held.hbm_bytes:.0%} of {format_si(held.hbm_bytes, 'B')}"
    return (
        Fact("step_s", "step", best.step_s, show_seconds, expected),
        Fact("mfu", "MFU", best.mfu, show_share, f"bound by {best.binds}"),
        Fact("hbm_bytes", "HBM per chip", held.total_bytes, show_bytes, used),
        Fact("tokens_per_s", "tokens/s", rate, lambda r: f"{r:,.0f}", "all chips"),
        Fact("tokens", "batch", asked.batch * asked.seq, show_count, "tokens per step"),
    )


def memory_answer(found: Search) -> Answer:
    """What a chip holds: the best layouts as bars, every part of the first as a table."""
    from rooflight.ui.browser.plan_pictures import memory_stacks  # a terminal draws none
    from rooflight.ui.svg.memory import memory_svg

    held = found.candidates[0].memory
    used = f"{format_si(held.total_bytes, 'B')} of {format_si(held.hbm_bytes, 'B')}"
    caption = "What a chip holds at its fullest, against what a program may use (dashed). The first"
    first = "What a chip of the first one holds, part by part"
    return Answer(
        (),
        tables=(replace(parts_table(held), caption=first, is_folded=True, is_first=False),),
        pictures=(
            Picture("memory", memory_svg(memory_stacks(found.candidates)), f"{caption}: {used}."),
        ),
    )

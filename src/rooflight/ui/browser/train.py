"""Train: the fastest layouts that fit a slice, as `rooflight plan train` finds them.

The ranked table is what a moving slider waits for; `train_more` has what takes longer.
"""

from dataclasses import dataclass, replace

from rooflight.errors import UsageError
from rooflight.models.graph.build import model_graph
from rooflight.models.presets import model_names
from rooflight.models.spec import ModelSpec
from rooflight.plan.training.memory.recipe import RECIPES
from rooflight.plan.training.search.candidate import RANKS, TRAINED_IN, Candidate, Question
from rooflight.plan.training.search.plan import (
    plan_training,
    rounded_batch,
    schedule_text,
    train_question,
)
from rooflight.plan.training.search.run import Search
from rooflight.plan.training.time.stage_time import OVERLAPS
from rooflight.ui.browser.answer import (
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
from rooflight.ui.browser.plan_pictures import memory_stacks
from rooflight.ui.browser.view import Field, ViewQuery
from rooflight.ui.svg.memory import memory_svg
from rooflight.units import format_count, format_seconds, format_si

SHOWN = 8  # layouts, as on the command line
_MOST_CHIPS = 20_000
_MOST_OF_EXPERTS = 1024  # chips: templates with experts have some 20 times as many layouts
_OF_FRAMEWORK, _USUAL = "framework", "usual"
_ROUND = (1, 1.5, 2, 3, 4, 6)
_BATCHES = tuple(
    f"{size:g}{unit}"
    for unit, sizes in (
        ("k", [*(10 * n for n in _ROUND), 100, 150, 200, 300, 400, 600]),
        ("M", [*_ROUND, *(10 * n for n in _ROUND), 100]),
    )
    for size in sizes
)

COLUMNS = (
    Column("rank", "#"),
    Column("step_s", "step", show_seconds),
    Column("mfu", "MFU", show_share),
    Column("hbm_bytes", "HBM per chip", show_bytes),
    Column("layout", "layout"),
    Column("mesh", "mesh"),
    Column("schedule", "schedule"),
    Column("remat", "remat"),
    Column("binds", "bound by"),
    Column("collectives_s", "collectives", show_seconds),
    Column("bubble_s", "bubble", show_seconds),
)

FIELDS = (
    Field("model", "Model", "text", "llama3-8b", "a preset or a config.json", model_names()),
    Field(
        *("on", "Slice", "text", "v5e:8x8", "CHIP:AxB"),
        (
            "v5e:8x8",
            "v5e:16x16",
            "v5p:8x8x8",
            "v5p:16x20x28",
            "v6e:16x16",
            "h100:8x16",
            "h100:8x128",
        ),
    ),
    Field(
        *("batch", "Batch", "count", "1M", "tokens per step; the nearest that suits the slice"),
        stops=_BATCHES,
        most=10**12,
    ),
    Field("seq", "Sequence", "length", "4096", "tokens", ("2048", "4096", "8192"), most=2**24),
    Field("dtype", "Dtype", "choice", "bf16", choices=TRAINED_IN),
    Field(
        *("recipe", "Bytes per parameter", "choice", _OF_FRAMEWORK),
        help="weights, gradients and optimizer",
        choices=(_OF_FRAMEWORK, *RECIPES),
    ),
    Field(
        *("overlap", "Collectives", "choice", "sum"),
        help="of different mesh axes queue up (sum) or run side by side (max)",
        choices=OVERLAPS,
    ),
    Field(
        *("framework", "Framework", "choice", _USUAL),
        help="whose schedules, memory and speed; usual: megatron on GPUs, rooflight elsewhere",
        choices=(_USUAL, "rooflight", "megatron", "torchtitan"),
    ),
    Field(
        *("rank", "Ranked by", "choice", "forecast", "the forecast, or the book's roofline"),
        choices=RANKS,
    ),
)


@dataclass(frozen=True, slots=True)
class TrainAnswer:
    """A question of the page, understood, with its answer."""

    model: ModelSpec
    asked: Question
    is_moved: bool  # the batch is not the one that was written
    found: Search

    @property
    def best(self) -> Candidate:
        return self.found.candidates[0]


def ask(question: ViewQuery, *, count: int = SHOWN) -> TrainAnswer:
    """Plans; a batch of broken sequences becomes the nearest one that suits the slice."""
    model, on = question.model("model"), question.slice("on")
    graph = model_graph(model)
    most = _MOST_OF_EXPERTS if any(op.kind == "route" for op in graph.ops) else _MOST_CHIPS
    if on.num_chips > most:
        raise UsageError(
            f"{on} has {format_count(on.num_chips)} chips, too many to search while you wait",
            hint=f"ask for at most {format_count(most)}, or use `rooflight plan train`",
        )
    tokens, seq = question.count("batch"), question.length("seq")
    if tokens < seq:
        raise UsageError(
            f"a batch of {tokens:,} tokens has no whole sequence of {seq:,}",
            hint=f"write a batch of {seq} or more",
        )
    asked = train_question(
        graph,
        on,
        round(tokens / seq),
        seq,
        question.dtype("dtype"),
        overlap="max" if question.text("overlap") == "max" else "sum",
        recipe=None if question.text("recipe") == _OF_FRAMEWORK else question.text("recipe"),
        framework=None if question.text("framework") == _USUAL else question.text("framework"),
        rank="roofline" if question.text("rank") == "roofline" else "forecast",
    )
    is_moved = asked.batch * seq != tokens
    asked = replace(asked, batch=rounded_batch(asked, tokens)) if is_moved else asked
    return TrainAnswer(model, asked, is_moved, plan_training(asked, count=count))


def answer(question: ViewQuery) -> Answer:
    """The ranked layouts, and what a chip of them holds."""
    planned = ask(question)
    found, best, asked = planned.found, planned.best, planned.asked
    stacks = memory_stacks(found.candidates)
    held = best.memory
    return Answer(
        sentences=tuple(filter(None, _sentences(question, planned))),
        facts=_facts(planned),
        tables=(
            Table(
                "candidates",
                "The fastest layouts that fit, best first",
                COLUMNS,
                tuple(candidate_row(i, c, asked) for i, c in enumerate(found.candidates, 1)),
                marked=0,
                is_first=True,
            ),
            Table(
                "memory",
                "What a chip of the first one holds, part by part",
                (
                    Column("part", "part"),
                    Column("bytes", "a chip", show_bytes),
                    Column("because", "why", is_wide=True),
                ),
                tuple((p.name, p.nbytes, p.because) for p in held.parts),
                is_folded=True,
            ),
        ),
        pictures=(
            Picture(
                "memory",
                memory_svg(stacks),
                "What a chip holds at its fullest, against what a program may use (dashed). The"
                f" first: {format_si(held.total_bytes, 'B')} of {format_si(held.hbm_bytes, 'B')}.",
            ),
        ),
        figures=(
            ("batch", asked.batch),
            ("num_priced", found.num_priced),
            ("num_too_large", found.num_too_large),
        ),
        command=command(question),
    )


def _sentences(question: ViewQuery, planned: TrainAnswer) -> tuple[str, ...]:
    asked, best = planned.asked, planned.best
    schedule = schedule_text(best)
    gaps = "; ".join(planned.model.not_understood)
    return (
        f"{planned.model.title} on {asked.on}, {format_count(asked.batch * asked.seq)} tokens a"
        f" step: {best.layout.text} with {best.mesh}, {schedule + ', ' if schedule else ''}"
        f"{format_seconds(best.step_s)}, MFU {best.mfu:.1%}, bound by {best.binds}",
        f"Why: {_why(best)}."
        f" {format_count(planned.found.num_priced)} layouts that divide were priced,"
        f" {format_count(planned.found.num_too_large)} of them cannot fit.",
        f"{format_count(asked.batch)} sequences: whole ones that suit the slice, within 2 % of"
        f" {question.text('batch')} tokens."
        if planned.is_moved
        else "",
        f"Not understood in the config, and left out: {gaps}." if gaps else "",
    )


def _why(best: Candidate) -> str:
    time, overlap = best.time, best.overlap
    if best.rank == "forecast":
        parts = {k: s for k, s in best.forecast.breakdown.named.items() if s >= 1e-3 * best.step_s}
        return ", ".join(f"{format_seconds(s)} of {name}" for name, s in parts.items())
    extra = f" ({format_seconds(time.recompute_s)} recomputed)" if time.recompute_s else ""
    bubble = f", then {format_seconds(time.bubble_s)} of bubble" if time.bubble_s else ""
    return (
        f"{format_seconds(time.matmuls_s)} of matmuls{extra} against"
        f" {format_seconds(time.collectives_s(overlap))} of collectives, which overlap{bubble};"
        f" nothing overlapped it takes {format_seconds(time.upper_s)}"
    )


def _facts(planned: TrainAnswer) -> tuple[Fact, ...]:
    asked, best = planned.asked, planned.best
    held, said = best.memory, best.forecast
    expected = "the roofline bound"
    if best.rank == "forecast":
        expected = (
            f"forecast by {said.basis.text}, 80 % between {format_seconds(said.low_s)} and"
            f" {format_seconds(said.high_s)}"
        )
    rate = asked.batch * asked.seq / best.step_s
    used = f"{held.total_bytes / held.hbm_bytes:.0%} of {format_si(held.hbm_bytes, 'B')}"
    return (
        Fact("step_s", "step", best.step_s, show_seconds, expected),
        Fact("tokens_per_s", "throughput", rate, lambda r: f"{r:,.0f} tokens/s", "all chips"),
        Fact("mfu", "MFU", best.mfu, show_share, "model FLOPs, causal attention"),
        Fact("hbm_bytes", "HBM per chip", held.total_bytes, show_bytes, used),
        Fact("tokens", "batch", asked.batch * asked.seq, show_count, "tokens per step"),
    )


def candidate_row(rank: int, candidate: Candidate, asked: Question) -> tuple[Value, ...]:
    """A layout as a row of the table."""
    time, overlap = candidate.time, asked.overlap
    return (
        rank,
        candidate.step_s,
        candidate.mfu,
        candidate.memory.total_bytes,
        candidate.layout.text,
        str(candidate.mesh),
        schedule_text(candidate) or None,
        candidate.remat.name,
        candidate.binds,
        time.collectives_s(overlap),
        time.bubble_s or None,
    )


def command(question: ViewQuery) -> str:
    """What prints the same table."""
    text = question.text
    defaults = {
        "dtype": "bf16",
        "recipe": _OF_FRAMEWORK,
        "overlap": "sum",
        "framework": _USUAL,
        "rank": "forecast",
    }
    rest = "".join(f" --{n} {text(n)}" for n, usual in defaults.items() if text(n) != usual)
    return (
        f"rooflight plan train {text('model')} --on {text('on')} --batch {text('batch')}"
        f" --seq {text('seq')}{rest}"
    )

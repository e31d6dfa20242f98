"""Train: the fastest layouts that fit a slice, as `rooflight plan train` finds them.

The ranked table is what a moving slider waits for; `more` has what takes longer.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from rooflight.errors import UsageError
from rooflight.models.graph.build import model_graph
from rooflight.models.presets import model_names
from rooflight.models.spec import ModelSpec
from rooflight.plan.training.memory.job import RECIPES
from rooflight.plan.training.questions.flips import flips
from rooflight.plan.training.questions.scaling import scale
from rooflight.plan.training.questions.what_if import changed
from rooflight.plan.training.questions.why_not import why_not
from rooflight.plan.training.search.candidate import RANKS, TRAINED_IN, Candidate, Question
from rooflight.plan.training.search.constraint import parse_constraint
from rooflight.plan.training.search.plan import plan_training, rounded_batch, train_question
from rooflight.plan.training.search.run import Search, search_training
from rooflight.plan.training.search.slices import largest_slice, slices_up_to
from rooflight.plan.training.time.stage_time import OVERLAPS
from rooflight.ui.answer import (
    Answer,
    Column,
    Fact,
    Picture,
    Table,
    ViewLink,
    joined,
    show_bytes,
    show_count,
    show_seconds,
)
from rooflight.ui.answers.questions import flips_answer, scaling_answer, why_not_answer
from rooflight.ui.answers.training import facts_of, memory_answer, plan_answer
from rooflight.ui.answers.training_pictures import pipeline_answer, roofline_answer, time_answer
from rooflight.ui.browser.plan_pictures import memory_stacks
from rooflight.ui.browser.view import Field, View, ViewQuery
from rooflight.ui.svg.memory import memory_svg
from rooflight.units import format_count

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
class PlannedTraining:
    """A question of the page, understood, with its answer."""

    model: ModelSpec
    asked: Question
    is_moved: bool  # the batch is not the one that was written
    found: Search

    @property
    def best(self) -> Candidate:
        return self.found.candidates[0]

    @property
    def fits(self) -> bool:
        return bool(self.found.candidates)


def ask(question: ViewQuery, *, count: int = SHOWN) -> PlannedTraining:
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
    found = search_training(asked, count=count, watch=question.watch)
    if not found.num_priced:
        plan_training(asked, count=1)  # says which dims do not divide
    return PlannedTraining(model, asked, is_moved, found)


def answer(question: ViewQuery) -> Answer:
    """The ranked layouts, and what a chip of them holds; where none fits, what would."""
    planned = ask(question)
    found, asked = planned.found, planned.asked
    if not planned.fits:
        return _unfit(question, planned)
    whole = joined((plan_answer(planned.model.title, asked, found), memory_answer(found)))
    return replace(
        whole,
        sentences=(*whole.sentences, *_moved(question, planned)),
        tables=tuple(replace(table, is_first=False) for table in whole.tables),
        facts=facts_of(asked, planned.best),
        figures=(
            ("fits", True),
            ("batch", asked.batch),
            ("num_priced", found.num_priced),
            ("num_too_large", found.num_too_large),
        ),
        command=command(question),
    )


# What does not fit: how far it is over, and the nearest questions that have an answer.

_LARGER = (1.1, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 16.0, 64.0)  # times the HBM
_TRIES = 8  # of each kind of change
_FIXES = (
    Column("change", "change"),
    Column("num_chips", "chips", show_count),
    Column("tokens", "tokens per step", show_count),
    Column("step_s", "step", show_seconds),
    Column("tokens_per_chip_s", "tokens/s per chip", show_count),
    Column("hbm_bytes", "HBM", show_bytes),
)


def _unfit(question: ViewQuery, planned: PlannedTraining) -> Answer:
    """How far the nearest layouts are over, and the changes that make room, with their cost."""
    asked = planned.asked
    factor, near = _nearest(asked)
    fixes = [fix for changes in _changes(asked) if (fix := _first_fit(question, changes))]
    rows = tuple(
        (
            *(link.words, n := p.asked.on.num_chips, tokens := p.asked.batch * p.asked.seq),
            *(p.best.step_s, tokens / p.best.step_s / n, p.best.memory.total_bytes),
        )
        for link, p in fixes
    )
    hbm_bytes, total = near[0].memory.hbm_bytes / factor, near[0].memory.total_bytes
    over = f"{show_bytes(total)} of {show_bytes(hbm_bytes)} per chip"
    stacks = replace(memory_stacks(near), capacity_bytes=round(hbm_bytes))
    caption = "What makes it fit, the least of each kind that was tried; follow one to its plan"
    drawn = f"What a chip would hold, were its HBM {factor:g} times as large; dashed: what it has."
    table = Table("fixes", caption, _FIXES, rows, is_first=True, links=tuple(f[0] for f in fixes))
    return Answer(
        sentences=(
            f"{planned.model.title} on {asked.on}, {format_count(asked.batch * asked.seq)} tokens"
            f" per step: does not fit; the nearest layout holds {over}",
            f"{format_count(planned.found.num_priced)} layouts divide, and none fits even when"
            " every layer is recomputed.",
            *_moved(question, planned),
        ),
        facts=(
            Fact("over_bytes", "over the HBM by", round(total - hbm_bytes), show_bytes, over),
            *(Fact(f"fix_{i}", "fits with", row[0]) for i, row in enumerate(rows)),
        ),
        tables=(table,) if rows else (),
        pictures=(Picture("memory", memory_svg(stacks), drawn),),
        figures=(("fits", False), ("batch", asked.batch)),
        command=command(question),
    )


def _nearest(asked: Question) -> tuple[float, tuple[Candidate, ...]]:
    """The least multiple of the HBM with which a layout fits, and the leanest of the fastest."""
    for factor in _LARGER:
        found = search_training(changed(asked, {"hbm": factor}), count=SHOWN).candidates
        if found:
            return factor, tuple(sorted(found, key=lambda c: c.memory.total_bytes))[:3]
    raise UsageError(f"nothing fits {asked.on}, by far", hint="use more chips")


def _changes(asked: Question) -> Iterator[list[tuple[str, str, str]]]:
    """Lists of a field, its new value and words for it, the smallest change first."""
    larger = slices_up_to(largest_slice(asked.on.chip))
    more = [str(on) for on in larger if on.num_chips > asked.on.num_chips]
    yield [("on", on, on) for on in more[:_TRIES]]
    halves = [asked.seq * (asked.batch >> n) for n in range(1, _TRIES) if asked.batch >> n]
    yield [("batch", f"{n}", f"{n:,} tokens per step") for n in halves]
    if asked.recipe.name != "10":
        yield [("recipe", "10", "10 bytes per parameter")]


def _first_fit(
    question: ViewQuery, changes: Sequence[tuple[str, str, str]]
) -> tuple[ViewLink, PlannedTraining] | None:
    for name, value, words in changes:
        values = tuple((n, value if n == name else v) for n, v in question.values)
        with suppress(UsageError):  # more chips than are searched here, or nothing divides
            planned = ask(replace(question, values=values), count=1)
            if planned.fits:
                return ViewLink(words, "train", values), planned
    return None


def _moved(question: ViewQuery, planned: PlannedTraining) -> Iterator[str]:
    """What the answer is not quite the answer to."""
    if planned.is_moved:
        yield (
            f"{format_count(planned.asked.batch)} sequences: whole ones that suit the slice, within"
            f" 5 % of {question.text('batch')} tokens."
        )
    if planned.model.not_understood:
        gaps = "; ".join(planned.model.not_understood)
        yield f"Not understood in the config, and left out: {gaps}."


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


def more(question: ViewQuery) -> Answer:
    """The look that was chosen, the pipeline if there is one, and the layout that was asked for."""
    planned = ask(question, count=1)
    if not planned.fits:
        return Answer(("Nothing fits, so there is no more to show.",), command=command(question))
    parts = [
        _LOOKS[question.text("look")](question, planned),
        *pipeline_answer(planned.asked, planned.best),
    ]
    if question.text("why_not"):
        parts.append(_why_not(question, planned))
    return replace(joined(parts), command=parts[-1].command)


def _time(question: ViewQuery, planned: PlannedTraining) -> Answer:
    found = time_answer(planned.asked, planned.best)
    return replace(found, command=f"{command(question)} --html plan.html")


def _roofline(question: ViewQuery, planned: PlannedTraining) -> Answer:
    found = roofline_answer(planned.asked, planned.best)
    return replace(found, command=f"{command(question)} --html plan.html")


def _scaling(question: ViewQuery, planned: PlannedTraining) -> Answer:
    found = scaling_answer(planned.model.title, scale(planned.asked, "strong"))
    return replace(found, command=f"{command(question)} --scaling strong")


def _flips(question: ViewQuery, planned: PlannedTraining) -> Answer:
    found = flips_answer(_subject(planned), flips(planned.asked, planned.best))
    return replace(found, command=f"{command(question)} --flips")


def _why_not(question: ViewQuery, planned: PlannedTraining) -> Answer:
    wanted = parse_constraint(question.text("why_not"), planned.asked.graph)
    found = why_not_answer(_subject(planned), why_not(planned.asked, wanted, planned.best))
    return replace(found, command=f"{command(question)} --why-not {question.text('why_not')}")


def _subject(planned: PlannedTraining) -> str:
    asked = planned.asked
    tokens = format_count(asked.batch * asked.seq)
    return f"{planned.model.title} on {asked.on}, {tokens} tokens per step"


_LOOKS: Mapping[str, Callable[[ViewQuery, PlannedTraining], Answer]] = {
    "time against batch": _time,
    "matmuls under the roof": _roofline,
    "strong scaling": _scaling,
    "flip points": _flips,
}

VIEW = View(
    "train",
    "Train",
    "The fastest layouts of a model on a slice: ranked, with their memory and what binds them.",
    (
        *FIELDS,
        Field(
            *("look", "And then", "choice", "time against batch", "the second, slower answer"),
            choices=tuple(_LOOKS),
        ),
        Field(
            *("why_not", "Why not", "text", "", "tp=16, fsdp=64,tp=8, pp=4 or remat=none"),
            is_optional=True,
        ),
    ),
    answer,
    more,
)

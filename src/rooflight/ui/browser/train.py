"""Train: the fastest layouts that fit a slice, as `rooflight plan train` finds them.

The ranked table is what a moving slider waits for; `train_more` has what takes longer.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from rooflight.errors import UsageError
from rooflight.models.graph.build import model_graph
from rooflight.models.presets import model_names
from rooflight.models.spec import ModelSpec
from rooflight.plan.training.memory.job import RECIPES
from rooflight.plan.training.search.candidate import RANKS, TRAINED_IN, Candidate, Question
from rooflight.plan.training.search.plan import (
    plan_training,
    rounded_batch,
    train_question,
)
from rooflight.plan.training.search.run import Search
from rooflight.plan.training.time.stage_time import OVERLAPS
from rooflight.ui.answer import Answer, joined
from rooflight.ui.answers.training import facts_of, memory_answer, plan_answer
from rooflight.ui.browser.view import Field, ViewQuery
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
    return PlannedTraining(model, asked, is_moved, plan_training(asked, count=count))


def answer(question: ViewQuery) -> Answer:
    """The ranked layouts, and what a chip of them holds."""
    planned = ask(question)
    found, asked = planned.found, planned.asked
    whole = joined((plan_answer(planned.model.title, asked, found), memory_answer(found)))
    return replace(
        whole,
        sentences=(*whole.sentences, *_moved(question, planned)),
        facts=facts_of(asked, planned.best),
        figures=(
            ("batch", asked.batch),
            ("num_priced", found.num_priced),
            ("num_too_large", found.num_too_large),
        ),
        command=command(question),
    )


def _moved(question: ViewQuery, planned: PlannedTraining) -> Iterator[str]:
    """What the answer is not quite the answer to."""
    if planned.is_moved:
        yield (
            f"{format_count(planned.asked.batch)} sequences: whole ones that suit the slice, within"
            f" 2 % of {question.text('batch')} tokens."
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

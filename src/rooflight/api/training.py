"""A training step: the best plan, the forecast of a layout of one's own, and what decides."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from rooflight.api.values import Count, Number, nearest_sequences, parse_seq, slice_of
from rooflight.dtypes import parse_dtype
from rooflight.errors import UsageError
from rooflight.hardware.slice import Slice
from rooflight.models.graph.build import model_graph
from rooflight.models.layout.rules import parse_layout
from rooflight.models.presets import load_model
from rooflight.models.spec import ModelSpec
from rooflight.plan.file.record import Decision, Plan, read_plan
from rooflight.plan.training.memory.count import usable_hbm_bytes
from rooflight.plan.training.memory.job import Microbatching
from rooflight.plan.training.memory.remat import parse_remat
from rooflight.plan.training.questions.why_not import WhyNot, best_of
from rooflight.plan.training.questions.why_not import why_not as answer_why_not
from rooflight.plan.training.search.candidate import Candidate, Question, Rank, price_one
from rooflight.plan.training.search.constraint import parse_constraint, region_of
from rooflight.plan.training.search.plan import plan_record, rounded_batch, train_question
from rooflight.plan.training.search.plan import plan_training as search_plan
from rooflight.plan.training.search.run import Search, Watch
from rooflight.plan.training.time.stage_time import Overlap
from rooflight.units import parse_count, parse_part


@dataclass(frozen=True, slots=True)
class TrainingQuestion:
    """A model to train, on what and by whose rules, as `training_question` read it."""

    model: ModelSpec
    question: Question
    choices: tuple[Decision, ...] = ()  # made while reading: a batch of whole sequences

    def search(self, *, count: int = 8, watch: Watch | None = None) -> Search:
        """The fastest layouts that fit."""
        return search_plan(self.question, count=count, watch=watch)

    def within(self, layout: str) -> "TrainingQuestion":
        """The same, of a layout of one's own: what it leaves open is still searched."""
        region, outside = region_of(parse_constraint(layout, self.question.graph), self.question)
        narrow = replace(self.question, region=region)
        if best_of(narrow) is None:
            raise _does_not_divide(layout, narrow)
        chosen = Decision("asked layout", layout, "; ".join(("as was asked", *outside)))
        return replace(self, question=narrow, choices=(*self.choices, chosen))

    def record(self, found: Search) -> Plan:
        return plan_record(self.model, self.question, found, self.choices)

    def why_not(self, layout: str, best: Candidate) -> WhyNot:
        """A layout of one's own against the best."""
        return answer_why_not(self.question, parse_constraint(layout, self.question.graph), best)


def training_question(
    model: str | ModelSpec,
    *,
    on: str | Slice,
    batch: Count,
    seq: Count,
    dtype: str = "bf16",
    framework: str | None = None,
    recipe: str | None = None,
    rank: Rank = "forecast",
    hbm_margin: Number | None = None,
    overlap: Overlap = "sum",
) -> TrainingQuestion:
    """Reads what is asked; a batch of broken sequences becomes one within 5 % that suits."""
    spec, length = load_model(model), parse_seq(seq)
    sequences, is_whole = nearest_sequences(batch, length)
    question = train_question(
        *(model_graph(spec), slice_of(on), sequences, length, parse_dtype(dtype)),
        overlap=overlap,
        recipe=recipe,
        framework=framework,
        rank=rank,
        hbm_margin=None if hbm_margin is None else parse_part(str(hbm_margin), what="--hbm-margin"),
    )
    if is_whole:
        return TrainingQuestion(spec, question)
    question = replace(question, batch=rounded_batch(question, parse_count(str(batch))))
    because = f"whole sequences that suit the slice, within 5 % of --batch {batch}"
    chosen = Decision("batch", f"{question.batch * length}", because)
    return TrainingQuestion(spec, question, (chosen,))


def plan_training(
    model: str | ModelSpec,
    *,
    on: str | Slice,
    batch: Count,
    seq: Count,
    dtype: str = "bf16",
    framework: str | None = None,
    recipe: str | None = None,
    rank: Rank = "forecast",
    hbm_margin: Number | None = None,
    overlap: Overlap = "sum",
) -> Plan:
    """The layout that trains a model fastest by the forecast, with its time, memory and reasons.

    >>> plan = plan_training("llama3-8b", on="v5p:2x2x4", batch="256Ki", seq=4096)
    >>> plan.layout, plan.mesh, plan.time.step_s > plan.time.roofline_s
    ('fsdp=X', 'X=16@x+y+z', True)
    """
    asked = training_question(
        model,
        on=on,
        batch=batch,
        seq=seq,
        dtype=dtype,
        framework=framework,
        recipe=recipe,
        rank=rank,
        hbm_margin=hbm_margin,
        overlap=overlap,
    )
    return asked.record(asked.search())


def forecast(
    model: str | ModelSpec,
    *,
    on: str | Slice,
    layout: str,
    batch: Count,
    seq: Count,
    dtype: str = "bf16",
    framework: str | None = None,
    recipe: str | None = None,
    hbm_margin: Number | None = None,
    overlap: Overlap = "sum",
) -> Candidate:
    """How long a step of a given layout takes: degrees, or axes on tiers, as people write them.

    >>> found = forecast("llama3-8b", on="h100:8x8", layout="tp=4,dp=16", batch="1Mi", seq=8192)
    >>> found.forecast.low_s < found.step_s < found.forecast.high_s, found.memory.fits
    (True, True)
    """
    question = training_question(
        model,
        on=on,
        batch=batch,
        seq=seq,
        dtype=dtype,
        framework=framework,
        recipe=recipe,
        hbm_margin=hbm_margin,
        overlap=overlap,
    ).question
    return best_with(question, layout)


def has_degrees(layout: str) -> bool:
    """Whether a layout makes its own mesh, `tp=8@node,dp=8`, or names axes of one: `tp=X,dp=Y`."""
    return bool(re.search(r"=\s*\d", layout))


def with_options(layout: str, options: Mapping[str, object]) -> str:
    """A layout and what is asked beside it, as one text."""
    names = {"virtual": "vp"}
    given = [f"{names.get(n, n)}={value}" for n, value in options.items() if value is not None]
    return ",".join((layout, *given))


def best_with(question: Question, layout: str, *, mesh: str | None = None) -> Candidate:
    """The best plan of a layout by degrees: what it leaves open, the planner chooses."""
    if mesh is not None:
        raise UsageError(
            "degrees make their own mesh", hint="leave --mesh out, or name its axes in --layout"
        )
    region, _ = region_of(parse_constraint(layout, question.graph), question)
    found = best_of(replace(question, region=region))
    if found is None:
        raise _does_not_divide(layout, question)
    return found


def _does_not_divide(layout: str, question: Question) -> UsageError:
    return UsageError(
        f"no placement of {layout} divides {question.batch} sequences on {question.on}",
        hint="degrees multiply to the chips, those that are left over going to dp or fsdp;"
        f" `plan train ... --why-not {layout}` says what does not divide",
    )


def why_not(plan: Plan, layout: str) -> WhyNot:
    """What another layout would do instead of a plan's, term by term.

    >>> plan = plan_training("llama3-8b", on="v5p:2x2x4", batch="256Ki", seq=4096)
    >>> why_not(plan, "fsdp=8,tp=2").verdict
    'slower'
    """
    question = train_question(
        *(model_graph(plan.model), plan.placed().slice, plan.batch, plan.seq),
        parse_dtype(plan.dtype),
        overlap=plan.overlap,
        recipe=plan.recipe,
        framework=plan.framework,
        rank="roofline" if plan.sources.get("time") == "spec" else "forecast",
        hbm_margin=1 - plan.memory.capacity_bytes / usable_hbm_bytes(plan.placed().slice.chip),
    )
    micro = Microbatching(plan.microbatches, plan.schedule or "1f1b", plan.virtual)
    remat = parse_remat(plan.remat, question.graph)
    best = price_one(question, parse_layout(plan.layout), plan.placed(), micro, remat)
    return TrainingQuestion(plan.model, question).why_not(layout, best)


def load_plan(path: str | Path) -> Plan:
    """A plan file, as `Plan.save` or `rooflight plan train --json` wrote it."""
    return read_plan(str(path))

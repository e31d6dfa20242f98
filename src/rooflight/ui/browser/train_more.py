"""Train, what takes longer: one further look at the plan, and why not another layout."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from rooflight.plan.training.questions.flips import flips
from rooflight.plan.training.questions.scaling import scale
from rooflight.plan.training.questions.why_not import why_not
from rooflight.plan.training.search.constraint import parse_constraint
from rooflight.ui.answer import Answer, joined
from rooflight.ui.answers.questions import flips_answer, scaling_answer, why_not_answer
from rooflight.ui.answers.training_pictures import pipeline_answer, roofline_answer, time_answer
from rooflight.ui.browser.train import FIELDS, PlannedTraining, answer, ask, command
from rooflight.ui.browser.view import Field, View, ViewQuery
from rooflight.units import format_count


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

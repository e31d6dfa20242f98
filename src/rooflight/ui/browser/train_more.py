"""Train, what takes longer: one further look at the plan, and why not another layout."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from rooflight.plan.training.questions.flips import Flip, Side, flips
from rooflight.plan.training.questions.scaling import Scaling, scale
from rooflight.plan.training.questions.why_not import WhyNot, why_not
from rooflight.plan.training.search.constraint import degrees_text, parse_constraint
from rooflight.ui.answer import (
    Answer,
    Column,
    Picture,
    Table,
    joined,
    show_bytes,
    show_count,
    show_seconds,
)
from rooflight.ui.answers.training_pictures import pipeline_answer, roofline_answer, time_answer
from rooflight.ui.browser.plan_pictures import lost, scaling_picture
from rooflight.ui.browser.train import FIELDS, PlannedTraining, answer, ask, command
from rooflight.ui.browser.view import Field, View, ViewQuery
from rooflight.units import format_count, format_si

_MOST_MATMULS = 6
_MOST_DRAWN = 64  # devices of a pipeline


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
    curve = scale(planned.asked, "strong")
    rows = tuple(
        (
            *(str(p.on), p.on.num_chips, p.step_s, p.tokens_per_s if p.best else None),
            *(curve.efficiency(p) if p.best else None, p.binds, lost(p) or None),
            degrees_text(p.best) if p.best else None,
        )
        for p in curve.points
    )
    columns = (
        Column("on", "slice"),
        Column("num_chips", "chips", show_count),
        Column("step_s", "step", show_seconds),
        Column("tokens_per_s", "tokens/s", lambda v: format_si(v, "").strip()),
        Column("efficiency", "efficiency", lambda v: f"{v:.0%}"),
        Column("binds", "bound by"),
        Column("lost_to", "lost most to"),
        Column("degrees", "layout"),
    )
    picture = Picture(
        "scaling",
        scaling_picture(planned.model.title, curve),
        "Tokens per second beside perfect scaling, and what a chip does as a part of its best.",
    )
    return Answer(
        sentences=(_bend(curve),),
        pictures=(picture,) if curve.has_points else (),
        tables=(Table("scaling", "The same batch on ever more chips", columns, rows),),
        command=f"{command(question)} --scaling strong",
    )


def _bend(curve: Scaling) -> str:
    bend = curve.bend
    if bend is None:
        return f"Strong scaling does not bend up to {curve.points[-1].on}."
    part = f"{curve.efficiency(bend):.0%}"
    return f"Strong scaling bends at {bend.on}: {part} of its best, bound by {bend.binds}."


def _flips(question: ViewQuery, planned: PlannedTraining) -> Answer:
    found = flips(planned.asked, planned.best)
    columns = (
        Column("tokens", "tokens per step", show_count),
        Column("side", "where"),
        Column("wins", "wins there"),
        Column("ratio", "the plan takes", lambda v: f"{v:.3f} times as long"),
        Column("verdict", "because"),
    )
    rows = tuple(
        (f.lost.tokens, "above" if f.is_above else "below", _winner(f.lost), f.ratio, _why(f))
        for f in found.found
    )
    return Answer(
        sentences=(
            f"{degrees_text(planned.best)} was tried from {format_count(found.least)} to"
            f" {format_count(found.most)} sequences: another layout wins at {len(rows)} places.",
        ),
        tables=(Table("flips", "Where another layout wins", columns, rows),) if rows else (),
        command=f"{command(question)} --flips",
    )


def _winner(side: Side) -> str:
    if side.best is None:
        return "nothing fits" if side.divides else "no layout divides"
    return degrees_text(side.best)


def _why(flip: Flip) -> str:
    return "the old one is slower" if flip.ratio is not None else f"the old one {flip.verdict}"


def _why_not(question: ViewQuery, planned: PlannedTraining) -> Answer:
    wanted = parse_constraint(question.text("why_not"), planned.asked.graph)
    found = why_not(planned.asked, wanted, planned.best)
    columns = (
        Column("name", "of a step"),
        Column("seconds", wanted.text, show_seconds),
        Column("best_s", "the plan", show_seconds),
    )
    rows = tuple((t.name, t.seconds, t.best_s) for t in found.terms)
    return Answer(
        sentences=tuple(_verdict(found)),
        tables=(Table("why_not", f"Why not {wanted.text}", columns, rows),) if rows else (),
        command=f"{command(question)} --why-not {question.text('why_not')}",
    )


def _verdict(found: WhyNot) -> Iterator[str]:
    because = "" if found.verdict == "wins" else f": {found.because}"
    yield f"{found.wanted.text} {_VERDICTS[found.verdict]}{because}"
    yield from (f"Outside the space: {reason}" for reason in found.outside)
    for fix in found.fixes:
        yield f"What would fit: {fix.change} (saves {show_bytes(fix.saves_bytes)}, {fix.cost})"


_VERDICTS = {
    "wins": "is the plan",
    "ties": "ties with the plan",
    "faster": "is faster than the plan",
    "slower": "is slower than the plan",
    "does not fit": "does not fit",
    "does not divide": "does not divide",
}
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

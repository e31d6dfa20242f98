"""Questions after a training plan as `Answer`s: why not, flips, what if, scaling, smallest slice.

In: what `plan.training.questions` found. Out: what terminal and explorer show of it.
"""

from collections.abc import Iterator, Sequence

from rooflight.plan.training.questions.flips import Flip, Flips, Side
from rooflight.plan.training.questions.scaling import BENDS, Scaling, ScalingPoint, Smallest
from rooflight.plan.training.questions.what_if import KNOBS, WhatIf
from rooflight.plan.training.questions.why_not import WhyNot, terms
from rooflight.plan.training.search.candidate import Candidate
from rooflight.plan.training.search.constraint import degrees_text, placed_text
from rooflight.plan.training.search.plan import schedule_text
from rooflight.ui.answer import Answer, Column, Picture, Table, Value, show_count, show_seconds
from rooflight.ui.browser.plan_pictures import lost, scaling_picture
from rooflight.units import format_count, format_seconds, format_si

_BILLION = 1e9
_KEEP = ("slice", "step", "efficiency", "$ a billion tokens", "bound by", "layout")
_AND = {
    "wins": "is the plan",
    "ties": "ties with the plan",
    "faster": "is faster than the plan",
    "slower": "is slower",
    "does not fit": "does not fit",
    "does not divide": "does not divide",
}


def why_not_answer(title: str, found: WhyNot) -> Answer:
    """The verdict and its reason, then the two layouts term by term."""
    mine, best, wanted = found.candidate, found.best, found.wanted.text
    by = ""
    if mine and found.verdict in ("slower", "faster"):
        by = f", {mine.step_s / best.step_s:.3f} times the step"
    because = "" if found.verdict == "wins" else f": {found.because}"
    is_other = mine is not None and found.verdict != "wins"
    overlaps = "matmuls and collectives overlap: a step takes the longer, then the bubble"
    return Answer(
        sentences=(
            f"{title}: {wanted} {_AND[found.verdict]}{by}{because}",
            *(f"outside the space: {reason}" for reason in found.outside),
            *_fixes(found),
            f"the plan: {short_text(best)}",
        ),
        tables=(compare_table((wanted, "the plan"), (mine, best)),) if mine and is_other else (),
        notes=("", overlaps) if is_other and best.rank == "roofline" else (),
    )


def _fixes(found: WhyNot) -> Iterator[str]:
    changes = [f"{f.change} (saves {format_si(f.saves_bytes, 'B')}, {f.cost})" for f in found.fixes]
    if changes:
        yield f"the smallest change that fits: {', then '.join(changes)}"


def short_text(candidate: Candidate) -> str:
    """Degrees, time and what binds, in one line."""
    return (
        f"{placed_text(candidate)}, {format_seconds(candidate.step_s)} per step, bound by"
        f" {candidate.binds}"
    )


def compare_table(header: tuple[str, str], pair: tuple[Candidate, Candidate]) -> Table:
    """Two layouts, fact by fact, then second by second."""
    seconds = [terms(c) for c in pair]
    names = [n for n in dict.fromkeys((*seconds[0], *seconds[1])) if n != "bubble"]
    names += ["bubble"] if any("bubble" in each for each in seconds) else []
    one, other = (c.memory.total_bytes for c in pair)
    more = format_si(one - other, "B") if one != other else None
    rows = (
        ("layout", *(c.layout.text for c in pair), ""),
        ("mesh", *(str(c.mesh) for c in pair), ""),
        ("schedule", *(schedule_text(c) or None for c in pair), ""),
        ("remat", *(c.remat.name for c in pair), ""),
        ("HBM", format_si(one, "B"), format_si(other, "B"), more),
        *(_compared(n, seconds[0].get(n, 0.0), seconds[1].get(n, 0.0)) for n in names),
        _compared("step", *(c.step_s for c in pair)),
    )
    labels = ("", *header, "difference")
    keys = ("name", "first", "second", "difference")
    columns = tuple(
        Column(key, label, is_right=label == "difference")
        for key, label in zip(keys, labels, strict=True)
    )
    return Table("compared", " beside ".join(header), columns, rows)


def _compared(name: str, one: float, other: float) -> tuple[Value, ...]:
    shown = (format_seconds(s) if s else None for s in (one, other))
    difference = one - other if abs(one - other) > 1e-9 * max(one, other) else 0.0
    sign = "+" if difference > 0 else ""
    return (name, *shown, f"{sign}{format_seconds(difference)}" if difference else None)


def flips_answer(title: str, found: Flips) -> Answer:
    """How far the plan holds, then a sentence for each flip."""
    along, asked = found.along, found.asked
    holds = degrees_text(asked.best) if asked.best else "nothing"
    below = [f for f in found.found if not f.is_above]
    above = [f for f in found.found if f.is_above]
    low = f"from {_size_text(below[-1].held, along)}" if below else "down to the smallest tried"
    high = f"to {_size_text(above[0].held, along)}" if above else "up to the largest tried"
    return Answer(
        sentences=(
            f"{title}: {holds} holds {low} {high}",
            f"tried: {format_count(found.least)} to {format_count(found.most)}"
            f" {'sequences a step' if along == 'batch' else 'tokens per sequence, as many a step'}",
        ),
        tables=(_flips(found.found),) if found.found else (),
    )


def _flips(found: Sequence[Flip]) -> Table:
    columns = Column("tokens", "tokens per step", show_count), Column("words", "flip", is_wide=True)
    rows = tuple((flip.lost.tokens, _flip(flip)) for flip in found)
    return Table("flips", "Where another layout wins", columns, rows, is_list=True)


def _flip(flip: Flip) -> str:
    side = "above" if flip.is_above else "below"
    where = f"{side} {_size_text(flip.held, flip.along)}"
    old = degrees_text(flip.held.best) if flip.held.best else "nothing"
    if flip.lost.best is None:
        nothing = "nothing fits" if flip.lost.divides else "no layout divides"
        return f"{where} {nothing} (tried at {_size_text(flip.lost, flip.along)})"
    loses = flip.verdict if flip.ratio is None else f"takes {flip.ratio:.3f} times as long"
    at = f"at {_size_text(flip.lost, flip.along)}, {old} {loses}"
    return f"{where}, {degrees_text(flip.lost.best)} wins: {at}"


def _size_text(side: Side, along: str) -> str:
    if along == "batch":
        return f"{format_count(side.tokens)} tokens per step"
    return f"{format_count(side.question.seq)} tokens per sequence"


def what_if_answer(title: str, found: WhatIf) -> Answer:
    """The new step time, then both plans term by term."""
    factors = ", ".join(f"{name} x {factor:g}" for name, factor in found.factors.items())
    before, after = found.before, found.after
    then = f"before: {short_text(before)}"
    if after is None or found.change is None:
        return Answer((f"{title} with {factors}: nothing fits any more", then))
    times = [format_seconds(c.step_s) for c in (before, after)]
    return Answer(
        sentences=(
            f"{title} with {factors}: {times[0]} -> {times[1]} per step,"
            f" {found.change:.3f} times as long",
            then,
            f"after:  {short_text(after)}",
        ),
        tables=(compare_table(("after", "before"), (after, before)),),
    )


def sensitivity_answer(title: str, found: Sequence[WhatIf]) -> Answer:
    """A row for each rate: what a tenth more of it does to the step."""
    moved = [a for a in found if a.change and abs(a.change - 1) > 1e-6]
    most = next(iter(moved), None)
    binds = f"{rate_of(most)} moves the step most" if most else "no rate alone moves the step"
    columns = (
        *(Column("rate", "10 % more"), Column("help", "what it is")),
        *(Column("change", "step time", is_right=True), Column("layout", "layout")),
    )
    rows = tuple((rate_of(a), KNOBS[rate_of(a)].help, _percent(a), _layout(a)) for a in found)
    return Answer(
        sentences=(f"{title}: {binds}", f"the plan: {short_text(found[0].before)}"),
        tables=(Table("rates", "A tenth more of each rate", columns, rows),),
        notes=("", "each row is planned anew; a rate that is hidden behind another moves nothing"),
    )


def rate_of(found: WhatIf) -> str:
    return next(iter(found.factors))


def _percent(found: WhatIf) -> str | None:
    if found.change is None:
        return "does not fit"
    part = found.change - 1
    return None if abs(part) < 1e-6 else f"{part:+.2%}"


def _layout(found: WhatIf) -> str:
    """The new layout, if it is another."""
    if found.after is None or found.after.degrees == found.before.degrees:
        return "the same"
    return degrees_text(found.after)


def scaling_answer(title: str, curve: Scaling) -> Answer:
    """Where the curve bends, then a row for each slice."""
    efficiency = Column("efficiency", "efficiency", lambda v: f"{v:.0%}")
    shares = [curve.efficiency(p) if p.best else None for p in curve.points]
    words = "Tokens per second beside perfect scaling, and what a chip does as a part of its best."
    return Answer(
        sentences=(f"{title}: {curve.kind} scaling {_bend(curve)}",),
        pictures=(Picture("scaling", scaling_picture(title, curve), words),)
        if curve.has_points
        else (),
        tables=(_slices("scaling", "Ever more chips", curve.points, efficiency, shares),),
        notes=(
            "",
            "efficiency: tokens per second of a chip, as a part of the best of these slices",
        ),
    )


def _bend(curve: Scaling) -> str:
    bend = curve.bend
    if not curve.has_points:
        return "has no slice on which the model fits"
    if bend is None:
        return f"stays above {BENDS:.0%} of its best up to {curve.points[-1].on}"
    where = f"{bend.on} ({format_count(bend.on.num_chips)} chips)"
    most = f"; lost most to {lost(bend)} of the step" if bend.lost_to else ""
    part = f"{curve.efficiency(bend):.0%}"
    return f"bends at {where}: {part} of its best, bound by {bend.binds}{most}"


def _slices(
    key: str,
    caption: str,
    points: Sequence[ScalingPoint],
    also: Column | None = None,
    cells: Sequence[Value] = (),
) -> Table:
    """A row for each slice, with one more column where a question has one."""
    columns = (
        *(Column("on", "slice"), Column("num_chips", "chips", show_count)),
        Column("tokens", "tokens per step", show_count),
        Column("step_s", "step", show_seconds),
        Column("tokens_per_s", "tokens/s", lambda v: format_si(v, "").strip()),
        *([also] if also else []),
        *(Column("binds", "bound by"), Column("lost_to", "lost most to")),
        Column("degrees", "layout"),
    )
    rows = tuple(
        (
            *(str(p.on), p.on.num_chips, p.question.batch * p.question.seq, p.step_s),
            p.tokens_per_s if p.best else None,
            *([cells[at]] if also else []),
            *(p.binds, lost(p) or None, degrees_text(p.best) if p.best else None),
        )
        for at, p in enumerate(points)
    )
    return Table(key, caption, columns, rows, keep=_KEEP)


def pareto_answer(title: str, front: Sequence[ScalingPoint], num_planned: int) -> Answer:
    """The slices that none beats, with what a billion tokens cost on each."""
    column = Column("dollars", "$ a billion tokens", lambda v: f"{v:,.2f}", unknown="unknown")
    each = [p.dollars_per_token for p in front]
    cells = [None if dollars is None else dollars * _BILLION for dollars in each]
    price = front[0].on.chip.dollars_per_hour if front else None
    source = front[0].on.chip.source_of("dollars_per_hour") if front else None
    where = f", {source.title}" if source else ""
    known = "price: unknown" if price is None else f"price: {price:g} dollars per chip-hour{where}"
    head = f"{len(front)} of {num_planned} slices are not beaten in time, chips and dollars"
    table = _slices("pareto", "Slices that none beats", front, column, cells)
    return Answer((f"{title}: {head}",), tables=(table,), notes=("", known))


def smallest_answer(title: str, found: Smallest) -> Answer:
    """The smallest slice that will do, then all that were tried."""
    answer = found.answer
    within = f" within {format_seconds(found.limit_s)} per step" if found.limit_s else ""
    if answer and answer.best:
        first = f"{title} trains{within} on {answer.on}: {short_text(answer.best)}"
    else:
        first = f"{title} does not train{within} on {found.tried[-1].on} or less"
    return Answer((first,), tables=(_slices("tried", "What was tried", found.tried),))

"""What `rooflight plan --scaling`, `--pareto` and `--solve chips` show."""

from collections.abc import Sequence

from rooflight.cli.why_not_page import candidate_document, short_text
from rooflight.plan.training.questions.scaling import BENDS, Scaling, ScalingPoint, Smallest
from rooflight.plan.training.search.constraint import degrees_text
from rooflight.ui.browser.plan_pictures import lost
from rooflight.ui.text.table import table
from rooflight.units import format_count, format_seconds, format_si

_BILLION = 1e9
_WHY = ("bound by", "lost most to", "layout")
_COLUMNS = ("slice", "chips", "tokens per step", "step", "tokens/s")
_KEEP = ("slice", "step", "efficiency", "$ a billion tokens", "bound by", "layout")


def scaling_text(title: str, curve: Scaling) -> str:
    """Where the curve bends, then a row for each slice."""
    rows = [(*_row(p), _efficiency(curve, p), *_why(p)) for p in curve.points]
    header = (*_COLUMNS, "efficiency", *_WHY)
    best = "efficiency: tokens per second of a chip, as a part of the best of these slices"
    answer = f"{title}: {curve.kind} scaling {_bend(curve)}"
    return "\n".join([answer, "", table(header, rows, align="lrrrrrlll", keep=_KEEP), "", best])


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


def _row(point: ScalingPoint) -> tuple[str, ...]:
    tokens = format_count(point.question.batch * point.question.seq)
    step_s = point.step_s
    times = ("-", "-") if step_s is None else (format_seconds(step_s), _rate(point.tokens_per_s))
    return str(point.on), format_count(point.on.num_chips), tokens, *times


def _rate(value: float) -> str:
    return format_si(value, "").strip()


def _efficiency(curve: Scaling, point: ScalingPoint) -> str:
    return f"{curve.efficiency(point):.0%}" if point.best else "-"


def _why(point: ScalingPoint) -> tuple[str, str, str]:
    return point.binds, lost(point) or "-", degrees_text(point.best) if point.best else "-"


def scaling_document(curve: Scaling) -> dict[str, object]:
    points = [
        {**_point_document(p), "efficiency": curve.efficiency(p) if p.best else None}
        for p in curve.points
    ]
    bend = str(curve.bend.on) if curve.bend else None
    return {"question": "scaling", "kind": curve.kind, "bend": bend, "points": points}


def _point_document(point: ScalingPoint) -> dict[str, object]:
    overlap = point.question.overlap
    return {
        "on": str(point.on),
        "num_chips": point.on.num_chips,
        "batch": point.question.batch,
        "step_s": point.step_s,
        "tokens_per_s": point.tokens_per_s if point.best else None,
        "dollars_per_token": point.dollars_per_token,
        "binds": point.binds,
        "lost_to": dict([point.lost_to]) if point.lost_to else {},
        "best": candidate_document(point.best, overlap) if point.best else None,
    }


def pareto_text(title: str, front: Sequence[ScalingPoint], num_planned: int) -> str:
    """The slices that none beats, with what a billion tokens cost on each."""
    rows = [(*_row(p), _dollars(p), *_why(p)) for p in front]
    header = (*_COLUMNS, "$ a billion tokens", *_WHY)
    price = front[0].on.chip.dollars_per_hour if front else None
    source = front[0].on.chip.source_of("dollars_per_hour") if front else None
    where = f", {source.title}" if source else ""
    known = "price: unknown" if price is None else f"price: {price:g} dollars per chip-hour{where}"
    answer = (
        f"{title}: {len(front)} of {num_planned} slices are not beaten in time, chips and dollars"
    )
    return "\n".join([answer, "", table(header, rows, align="lrrrrrlll", keep=_KEEP), "", known])


def _dollars(point: ScalingPoint) -> str:
    each = point.dollars_per_token
    return "unknown" if each is None else f"{each * _BILLION:,.2f}"


def pareto_document(front: Sequence[ScalingPoint], num_planned: int) -> dict[str, object]:
    points = [_point_document(p) for p in front]
    return {"question": "pareto", "num_planned": num_planned, "points": points}


def smallest_text(title: str, found: Smallest) -> str:
    """The smallest slice that will do, then all that were tried."""
    answer = found.answer
    within = f" within {format_seconds(found.limit_s)} per step" if found.limit_s else ""
    if answer and answer.best:
        best = short_text(answer.best, answer.question.overlap)
        first = f"{title} trains{within} on {answer.on}: {best}"
    else:
        first = f"{title} does not train{within} on {found.tried[-1].on} or less"
    rows = [(*_row(p), *_why(p)) for p in found.tried]
    return "\n".join([first, "", table((*_COLUMNS, *_WHY), rows, align="lrrrrlll", keep=_KEEP)])


def smallest_document(found: Smallest) -> dict[str, object]:
    return {
        "question": "solve",
        "solve": "chips",
        "limit_s": found.limit_s,
        "on": str(found.answer.on) if found.answer else None,
        "tried": [_point_document(p) for p in found.tried],
    }

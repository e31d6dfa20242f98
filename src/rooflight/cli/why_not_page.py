"""What `rooflight plan` shows of one layout, and for `--why-not`, `--flips` and `--scaling`."""

from collections.abc import Sequence

from rooflight.plan.training.questions.fixes import Fix
from rooflight.plan.training.questions.flips import Flip, Flips, Side
from rooflight.plan.training.questions.scaling import BENDS, Scaling, ScalingPoint, Smallest
from rooflight.plan.training.questions.why_not import WhyNot, terms
from rooflight.plan.training.search.candidate import Candidate
from rooflight.plan.training.search.constraint import degrees_text, placed_text
from rooflight.plan.training.search.plan import schedule_text
from rooflight.plan.training.time.stage_time import Overlap
from rooflight.ui.browser.plan_pictures import lost
from rooflight.ui.text.table import table
from rooflight.units import format_count, format_seconds, format_si

_BILLION = 1e9
_WHY = ("bound by", "lost most to", "layout")
_COLUMNS = ("slice", "chips", "tokens per step", "step", "tokens/s")
_KEEP = ("slice", "step", "efficiency", "$ a billion tokens", "bound by", "layout")

_AND = {
    "wins": "is the plan",
    "ties": "ties with the plan",
    "faster": "is faster than the plan",
    "slower": "is slower",
    "does not fit": "does not fit",
    "does not divide": "does not divide",
}


def why_not_text(title: str, answer: WhyNot, overlap: Overlap) -> str:
    """The verdict and its reason, then the two layouts term by term."""
    mine, best = answer.candidate, answer.best
    by = ""
    if mine and answer.verdict in ("slower", "faster"):
        ratio = mine.step_s / best.step_s
        by = f", {ratio:.3f} times the step"
    because = "" if answer.verdict == "wins" else f": {answer.because}"
    lines = [f"{title}: {answer.wanted.text} {_AND[answer.verdict]}{by}{because}"]
    lines += [f"outside the space: {reason}" for reason in answer.outside]
    lines += _fix_lines(answer.fixes)
    lines.append(f"the plan: {short_text(best, overlap)}")
    if mine and answer.verdict != "wins":
        lines += ["", compare((answer.wanted.text, "the plan"), (mine, best), overlap)]
        if best.rank == "roofline":
            overlaps = "matmuls and collectives overlap: a step takes the longer, then the bubble"
            lines += ["", overlaps]
    return "\n".join(lines)


def _fix_lines(fixes: tuple[Fix, ...]) -> list[str]:
    changes = [f"{f.change} (saves {format_si(f.saves_bytes, 'B')}, {f.cost})" for f in fixes]
    return [f"the smallest change that fits: {', then '.join(changes)}"] if changes else []


def why_not_document(answer: WhyNot, overlap: Overlap) -> dict[str, object]:
    """The verdict, both layouts, and every term."""
    mine = answer.candidate
    return {
        "question": "why-not",
        "asked": answer.wanted.text,
        "verdict": answer.verdict,
        "because": answer.because,
        "outside": list(answer.outside),
        "candidate": candidate_document(mine, overlap) if mine else None,
        "best": candidate_document(answer.best, overlap),
        "terms": [{"name": t.name, "seconds": t.seconds, "best_s": t.best_s} for t in answer.terms],
        "fixes": [
            {"change": f.change, "cost": f.cost, "saves_bytes": f.saves_bytes} for f in answer.fixes
        ],
    }


def flips_text(title: str, answer: Flips) -> str:
    """How far the plan holds, then a line for each flip."""
    asked = answer.asked
    holds = degrees_text(asked.best) if asked.best else "nothing"
    below = [f for f in answer.found if not f.is_above]
    above = [f for f in answer.found if f.is_above]
    along = answer.along
    low = f"from {_size_text(below[-1].held, along)}" if below else "down to the smallest tried"
    high = f"to {_size_text(above[0].held, along)}" if above else "up to the largest tried"
    looked = (
        f"tried: {format_count(answer.least)} to {format_count(answer.most)}"
        f" {'sequences a step' if along == 'batch' else 'tokens per sequence, as many a step'}"
    )
    return "\n".join(
        [f"{title}: {holds} holds {low} {high}", looked, *map(_flip_line, answer.found)]
    )


def _flip_line(flip: Flip) -> str:
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


def flips_document(answer: Flips, overlap: Overlap) -> dict[str, object]:
    """Both sides of every flip, smallest first; sizes that were tried."""
    return {
        "question": "flips",
        "along": answer.along,
        "asked": _side_document(answer.asked, overlap),
        "least": answer.least,
        "most": answer.most,
        "flips": [
            {
                "held": _side_document(f.held, overlap),
                "lost": _side_document(f.lost, overlap),
                "verdict": f.verdict,
                "ratio": f.ratio,
            }
            for f in answer.found
        ],
    }


def _side_document(side: Side, overlap: Overlap) -> dict[str, object]:
    best = candidate_document(side.best, overlap) if side.best else None
    return {"batch": side.question.batch, "seq": side.question.seq, "best": best}


def short_text(candidate: Candidate, overlap: Overlap) -> str:
    """Degrees, time and what binds, in one line."""
    return (
        f"{placed_text(candidate)}, {format_seconds(candidate.step_s)} per step, bound by"
        f" {candidate.binds}"
    )


def candidate_document(candidate: Candidate, overlap: Overlap) -> dict[str, object]:
    """What a layout is, what it takes and what it holds."""
    time, micro = candidate.time, candidate.micro
    return {
        "layout": candidate.layout.text,
        "mesh": str(candidate.mesh),
        "stages": candidate.num_stages,
        "schedule": micro.schedule if candidate.num_stages > 1 else None,
        "virtual": micro.virtual,
        "microbatches": micro.count,
        "remat": candidate.remat.name,
        "step_s": candidate.step_s,
        "roofline_s": time.expected_s(overlap),
        "forecast_s": candidate.forecast.seconds,
        "parts_s": candidate.forecast.breakdown.named,
        "matmuls_s": time.matmuls_s,
        "recompute_s": time.recompute_s,
        "collectives_s": dict(time.axes_s),
        "bubble_s": time.bubble_s,
        "hbm_bytes": candidate.memory.total_bytes,
        "mfu": candidate.mfu,
        "binds": candidate.binds,
    }


def compare(header: tuple[str, str], pair: Sequence[Candidate], overlap: Overlap) -> str:
    """Two layouts, fact by fact, then second by second."""
    seconds = [terms(c) for c in pair]
    names = [n for n in dict.fromkeys((*seconds[0], *seconds[1])) if n != "bubble"]
    names += ["bubble"] if any("bubble" in each for each in seconds) else []
    facts = [
        ("layout", *(c.layout.text for c in pair), ""),
        ("mesh", *(str(c.mesh) for c in pair), ""),
        ("schedule", *(schedule_text(c) or "-" for c in pair), ""),
        ("remat", *(c.remat.name for c in pair), ""),
        _bytes_row(pair),
    ]
    rows = [_row(n, seconds[0].get(n, 0.0), seconds[1].get(n, 0.0)) for n in names]
    step = _row("step", *(c.step_s for c in pair))
    return table(("", *header, "difference"), [*facts, *rows, step], align="lllr")


def _bytes_row(pair: Sequence[Candidate]) -> tuple[str, ...]:
    one, other = (c.memory.total_bytes for c in pair)
    difference = format_si(one - other, "B") if one != other else "-"
    return "HBM", format_si(one, "B"), format_si(other, "B"), difference


def _row(name: str, one: float, other: float) -> tuple[str, ...]:
    shown = [format_seconds(s) if s else "-" for s in (one, other)]
    difference = one - other if abs(one - other) > 1e-9 * max(one, other) else 0.0
    sign = "+" if difference > 0 else ""
    return name, *shown, f"{sign}{format_seconds(difference)}" if difference else "-"


def scaling_text(title: str, curve: Scaling) -> str:
    """Where the curve bends, then a row for each slice."""
    rows = [(*_scaling_row(p), _efficiency(curve, p), *_why(p)) for p in curve.points]
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


def _scaling_row(point: ScalingPoint) -> tuple[str, ...]:
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
    rows = [(*_scaling_row(p), _dollars(p), *_why(p)) for p in front]
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
    rows = [(*_scaling_row(p), *_why(p)) for p in found.tried]
    return "\n".join([first, "", table((*_COLUMNS, *_WHY), rows, align="lrrrrlll", keep=_KEEP)])


def smallest_document(found: Smallest) -> dict[str, object]:
    return {
        "question": "solve",
        "solve": "chips",
        "limit_s": found.limit_s,
        "on": str(found.answer.on) if found.answer else None,
        "tried": [_point_document(p) for p in found.tried],
    }

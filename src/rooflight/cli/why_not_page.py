"""What `rooflight plan --why-not` and `--flips` show."""

from collections.abc import Sequence

from rooflight.plan.training.questions.fixes import Fix
from rooflight.plan.training.questions.flips import Flip, Flips, Side
from rooflight.plan.training.questions.why_not import WhyNot, terms
from rooflight.plan.training.search.candidate import Candidate
from rooflight.plan.training.search.constraint import degrees_text, placed_text
from rooflight.plan.training.search.plan import schedule_text
from rooflight.plan.training.time.stage_time import Overlap
from rooflight.ui.text.table import table
from rooflight.units import format_count, format_seconds, format_si

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

"""What `rooflight plan --why-not` and `--flips` show."""

from rooflight.cli.candidate_page import candidate_document, compare, short_text
from rooflight.plan.training.questions.fixes import Fix
from rooflight.plan.training.questions.flips import Flip, Flips, Side
from rooflight.plan.training.questions.why_not import WhyNot
from rooflight.plan.training.search.constraint import degrees_text
from rooflight.plan.training.time.stage_time import Overlap
from rooflight.units import format_count, format_si

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

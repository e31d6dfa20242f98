"""What `rooflight plan` says in JSON of one layout, and for the questions after the plan."""

from collections.abc import Sequence

from rooflight.plan.training.questions.flips import Flips, Side
from rooflight.plan.training.questions.scaling import Scaling, ScalingPoint, Smallest
from rooflight.plan.training.questions.what_if import WhatIf
from rooflight.plan.training.questions.why_not import WhyNot
from rooflight.plan.training.search.candidate import Candidate
from rooflight.plan.training.time.stage_time import Overlap
from rooflight.ui.answers.questions import rate_of


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


def pareto_document(front: Sequence[ScalingPoint], num_planned: int) -> dict[str, object]:
    points = [_point_document(p) for p in front]
    return {"question": "pareto", "num_planned": num_planned, "points": points}


def smallest_document(found: Smallest) -> dict[str, object]:
    return {
        "question": "solve",
        "solve": "chips",
        "limit_s": found.limit_s,
        "on": str(found.answer.on) if found.answer else None,
        "tried": [_point_document(p) for p in found.tried],
    }


def what_if_document(answer: WhatIf, overlap: Overlap) -> dict[str, object]:
    return {
        "question": "what-if",
        "factors": dict(answer.factors),
        "change": answer.change,
        "before": candidate_document(answer.before, overlap),
        "after": candidate_document(answer.after, overlap) if answer.after else None,
    }


def sensitivity_document(answers: Sequence[WhatIf], overlap: Overlap) -> dict[str, object]:
    return {
        "question": "sensitivity",
        "before": candidate_document(answers[0].before, overlap),
        "rates": [
            {
                "rate": rate_of(a),
                "factor": a.factors[rate_of(a)],
                "change": a.change,
                "after": candidate_document(a.after, overlap) if a.after else None,
            }
            for a in answers
        ],
    }

"""One layout of a search as words, as JSON, and two of them side by side."""

from collections.abc import Sequence

from rooflight.plan.training.questions.why_not import terms
from rooflight.plan.training.search.candidate import Candidate
from rooflight.plan.training.search.constraint import placed_text
from rooflight.plan.training.search.plan import schedule_text
from rooflight.plan.training.time.stage_time import Overlap
from rooflight.ui.text.table import table
from rooflight.units import format_seconds, format_si


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

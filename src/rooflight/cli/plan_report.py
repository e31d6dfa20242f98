"""`--html`: a plan as one HTML file that stands alone."""

from collections.abc import Iterator

from rooflight.cli.chip_facts import fact_text
from rooflight.cli.output import write_file
from rooflight.cli.plan_views import memory_view, pipeline_view, roof_view, time_view
from rooflight.hardware.chip import Chip
from rooflight.models.spec import ModelSpec
from rooflight.plan.file.record import Plan, plan_hash, to_json
from rooflight.plan.training.search.candidate import Candidate, Question
from rooflight.plan.training.search.plan import schedule_text
from rooflight.plan.training.search.run import Search
from rooflight.ui.html.page import Grid, Link
from rooflight.ui.html.plan import PlanFact, PlanPage, plan_html
from rooflight.units import format_count, format_seconds, format_si

_OVERLAP = {
    "sum": "collectives of different mesh axes queue up (overlap sum, the book's 2025 edition)",
    "max": "collectives of different mesh axes run side by side (overlap max, its newer edition)",
}


def write_report(
    path: str, model: ModelSpec, question: Question, found: Search, plan: Plan
) -> None:
    """Writes the page of a plan to a file that the user named."""
    write_file(path, plan_html(report_page(model, question, found, plan)), flag="--html")


def report_page(model: ModelSpec, question: Question, found: Search, plan: Plan) -> PlanPage:
    """Everything the page shows, as records."""
    best = found.candidates[0]
    sources = tuple(_sources(model, question.on.chip, question))
    return PlanPage(
        title=f"{model.title} on {question.on}",
        kicker=f"Training plan {plan_hash(plan)}, rooflight {plan.version}",
        answer=_answer(best, plan),
        why=_why(best, plan),
        facts=tuple(_facts(question, plan)),
        candidates=_candidates(question, found),
        candidates_note=_searched(plan),
        times=time_view(question, best),
        roof=roof_view(question, best),
        memory=memory_view(found),
        pipeline=pipeline_view(question, best),
        reasons=plan.choices,
        losers=_losers(plan),
        assumptions=tuple(_assumptions(plan)),
        sources=Grid(
            "What the numbers above rest on",
            ("fact", "value", "checked"),
            tuple(r for r, _ in sources),
            "lrl",
        ),
        source_links=tuple(link for _, link in sources),
        plan_json=to_json(plan),
    )


def _answer(best: Candidate, plan: Plan) -> str:
    schedule = schedule_text(best)
    where = f"{plan.layout} on the mesh {plan.mesh}{', ' + schedule if schedule else ''}"
    return (
        f"Train with {where}: a step of {format_count(plan.tokens)} tokens takes"
        f" {format_seconds(best.step_s)}, MFU {best.mfu:.1%}, bound by {plan.binds}."
    )


def _why(best: Candidate, plan: Plan) -> str:
    time = plan.time
    if best.rank == "forecast":
        parts = {k: s for k, s in best.forecast.breakdown.named.items() if s >= 1e-3 * best.step_s}
        named = ", ".join(f"{format_seconds(s)} of {name}" for name, s in parts.items())
        return f"{named}. Forecast by {best.forecast.basis.text}."
    collectives = format_seconds(best.time.collectives_s(plan.overlap))
    extra = f" ({format_seconds(time.recompute_s)} of them recomputed)" if time.recompute_s else ""
    bubble = f", then {format_seconds(time.bubble_s)} of bubble" if time.bubble_s else ""
    return (
        f"{format_seconds(time.matmuls_s)} of matmuls{extra} against {collectives} of"
        f" collectives, which overlap{bubble}. Uncalibrated: the roofline bound of the catalog,"
        " without overheads."
    )


def _facts(question: Question, plan: Plan) -> Iterator[PlanFact]:
    time, held = plan.time, plan.memory
    uncalibrated = "uncalibrated" if plan.sources["time"] == "spec" else ""
    source = ", ".join(filter(None, [f"source: {plan.sources['time']}", uncalibrated]))
    said = time.forecast if plan.sources["time"] == "calibrated" else None
    low_s, high_s = (said.low_s, said.high_s) if said else (time.lower_s, time.upper_s)
    part = "80 % between" if said else "between"
    bounds = f"{part} {format_seconds(low_s)} and {format_seconds(high_s)}; {source}"
    step_s = said.seconds if said else time.roofline_s
    yield PlanFact("Step time", format_seconds(step_s), bounds)
    yield PlanFact("Roofline", format_seconds(time.roofline_s), "every roof reached; source: spec")
    yield PlanFact(
        "Throughput", f"{format_count(round(plan.tokens_per_s))} tokens/s", f"all chips; {source}"
    )
    yield PlanFact(
        "MFU", f"{plan.mfu.value:.1%}", f"{plan.mfu.convention}; source: {plan.sources['mfu']}"
    )
    used = f"{held.total_bytes / held.capacity_bytes:.0%} of {format_si(held.capacity_bytes, 'B')}"
    yield PlanFact(
        "HBM per chip",
        format_si(held.total_bytes, "B"),
        f"{used}; source: {plan.sources['memory']}",
    )
    yield PlanFact(
        "Batch",
        f"{format_count(plan.tokens)} tokens",
        f"{format_count(plan.batch)} sequences of {format_count(plan.seq)}; given",
    )
    chips = question.on.num_chips
    yield PlanFact("Chips", format_count(chips), f"{question.on.chip.title}; given")


def _candidates(question: Question, found: Search) -> Grid:
    header = ("#", "step", "MFU", "HBM per chip", "layout", "mesh", "schedule", "remat", "bound by")
    rows = tuple((str(i), *_row(c, question)) for i, c in enumerate(found.candidates, 1))
    caption = "The fastest layouts that fit, best first"
    return Grid(caption, (*header, "collectives", "bubble"), rows, "rrrrllwllrr", marked=0)


def _row(candidate: Candidate, question: Question) -> tuple[str, ...]:
    time, overlap = candidate.time, question.overlap
    return (
        format_seconds(candidate.step_s),
        f"{candidate.mfu:.1%}",
        format_si(candidate.memory.total_bytes, "B"),
        candidate.layout.text,
        str(candidate.mesh),
        schedule_text(candidate) or "-",
        candidate.remat.name,
        candidate.binds,
        format_seconds(time.collectives_s(overlap)),
        format_seconds(time.bubble_s) if time.bubble_s else "-",
    )


def _searched(plan: Plan) -> str:
    counts = plan.searched
    return (
        f"{format_count(counts['priced'])} layouts that divide were priced,"
        f" {format_count(counts['too_large'])} of them cannot fit. Times within a thousandth are a"
        f" tie: the layout with less time in collectives is first. Source: {plan.sources['time']}."
    )


def _losers(plan: Plan) -> Grid | None:
    rows = tuple(
        (str(place), lost.layout, lost.mesh, lost.because)
        for place, lost in enumerate(plan.alternatives, 2)
    )
    header = ("#", "layout", "mesh", "why it is not first")
    return Grid("Why not the others", header, rows, "rllw") if rows else None


def _assumptions(plan: Plan) -> Iterator[str]:
    yield f"Matmuls and collectives overlap; {_OVERLAP[plan.overlap]}."
    yield (
        f"Matmuls run at the catalog's dense {plan.dtype} rate or at HBM bandwidth, whichever is"
        " slower."
    )
    yield "Attention is a kernel: it skips masked pairs and never stores the scores."
    yield (
        f"A parameter takes recipe {plan.recipe}, and optimizer state is split over all data axes"
        f" (zero {plan.zero})."
    )
    yield (
        "Not priced: the embedding lookup, elementwise ops, norms over a split dim, the optimizer's"
        " own arithmetic, input and checkpoints."
    )
    if plan.sources["time"] == "spec":
        yield "Nothing here was measured: read times as what the hardware allows, no forecast."
    for gap in plan.model.not_understood:
        yield f"Not understood in the model's configuration, and left out: {gap}."


def _sources(
    model: ModelSpec, chip: Chip, question: Question
) -> Iterator[tuple[tuple[str, ...], Link]]:
    compute = chip.matmul_dtype(question.dtype.name)
    hbm = "detail.hbm_usable_bytes" if "detail.hbm_usable_bytes" in chip.sources else "hbm_bytes"
    wanted = [f"flops.{compute}", "hbm_bytes_per_s", hbm]
    wanted += [f for f in chip.sources if f.startswith(("torus.link", "torus.hop", "switched."))]
    wanted += ["dcn_bytes_per_s_per_host"] if any(d.name == "dcn" for d in question.on.dims) else []
    for fact in wanted:
        source = chip.source_of(fact)
        if source:
            row = (f"{chip.name} {fact}", fact_text(chip, fact), source.checked)
            yield row, Link(source.title, source.url)
    if model.source:
        sizes = (f"{model.name} sizes", "in the plan file", model.source.checked)
        yield sizes, Link(model.source.title, model.source.url)

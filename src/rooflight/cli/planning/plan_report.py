"""`--html`: a plan as one HTML file that stands alone."""

from collections.abc import Iterator
from dataclasses import replace

from rooflight.cli.output import write_file
from rooflight.hardware.chip import Chip
from rooflight.models.spec import ModelSpec
from rooflight.plan.file.record import Plan, plan_hash, to_json
from rooflight.plan.training.search.candidate import Question
from rooflight.plan.training.search.run import Search
from rooflight.ui.answer import Answer, Column, Table
from rooflight.ui.answers.hardware import fact_text
from rooflight.ui.answers.training import facts_of, memory_answer, plan_answer
from rooflight.ui.answers.training_pictures import (
    pipeline_answer,
    reasons_tables,
    roofline_answer,
    time_answer,
)
from rooflight.ui.html.answer import lead, section
from rooflight.ui.html.page import Section, bullets, code, folded, page

_OVERLAP = {
    "sum": "collectives of different mesh axes queue up (overlap sum, the book's 2025 edition)",
    "max": "collectives of different mesh axes run side by side (overlap max, its newer edition)",
}


def write_report(
    path: str, model: ModelSpec, question: Question, found: Search, plan: Plan
) -> None:
    """Writes the page of a plan to a file that the user named."""
    write_file(path, report_page(model, question, found, plan), flag="--html")


def report_page(model: ModelSpec, question: Question, found: Search, plan: Plan) -> str:
    """What the terminal says, with pictures, reasons and sources."""
    best = found.candidates[0]
    whole = plan_answer(model.title, question, found)
    head = Answer(whole.sentences, facts=facts_of(question, best))
    sections = [
        section("candidates", "Candidates", replace(whole, sentences=())),
        section("time", "Time against batch", time_answer(question, best)),
        section("roofline", "Roofline of the matmuls", roofline_answer(question, best)),
        section("memory", "Memory of a chip", memory_answer(found)),
        *(section("pipeline", "Pipeline", one) for one in pipeline_answer(question, best)),
        section("choices", "Choices and reasons", Answer((), tables=tuple(reasons_tables(plan)))),
        Section("assumptions", "Assumptions", (bullets(tuple(_assumptions(plan))),)),
        section("sources", "Sources", Answer((), tables=(_sources(model, question),))),
        Section(
            "plan-file",
            "Plan file",
            (folded("The plan as JSON, the file that other verbs take", code(to_json(plan))),),
        ),
    ]
    return page(
        title=f"{model.title} on {question.on}",
        kicker=f"Training plan {plan_hash(plan)}, rooflight {plan.version}",
        lead=tuple(lead(head)),
        sections=sections,
    )


def _assumptions(plan: Plan) -> Iterator[str]:
    said = plan.time.forecast if plan.sources["time"] == "calibrated" else None
    if said:
        yield (
            "Seconds are a forecast: matmuls, memory passes, collectives, the bubble and the"
            f" optimizer, each at what was measured of it ({said.basis})."
        )
    else:
        yield f"Matmuls and collectives overlap; {_OVERLAP[plan.overlap]}."
        yield (
            f"Matmuls run at the catalog's dense {plan.dtype} rate or at HBM bandwidth, whichever"
            " is slower; elementwise ops and the optimizer's arithmetic are not priced."
        )
        yield "Nothing here was measured: read times as what the hardware allows, no forecast."
    yield "Attention is a kernel: it skips masked pairs and never stores the scores."
    yield (
        f"A parameter takes recipe {plan.recipe}, and optimizer state is split over all data axes"
        f" (zero {plan.zero})."
    )
    yield "Reading data, evaluation and checkpoints are not in a step."
    for gap in plan.model.not_understood:
        yield f"Not understood in the model's configuration, and left out: {gap}."


def _sources(model: ModelSpec, question: Question) -> Table:
    columns = (
        *(Column("fact", "fact"), Column("value", "value"), Column("checked", "checked")),
        *(Column("source", "source", is_wide=True), Column("url", "address", is_wide=True)),
    )
    rows = tuple(_facts(model, question.on.chip, question))
    return Table("sources", "What the numbers above rest on", columns, rows)


def _facts(model: ModelSpec, chip: Chip, question: Question) -> Iterator[tuple[str, ...]]:
    compute = chip.matmul_dtype(question.dtype.name)
    hbm = "detail.hbm_usable_bytes" if "detail.hbm_usable_bytes" in chip.sources else "hbm_bytes"
    named = [f"flops.{compute}", "hbm_bytes_per_s", hbm]
    named += [f for f in chip.sources if f.startswith(("torus.link", "torus.hop", "switched."))]
    named += ["dcn_bytes_per_s_per_host"] if any(d.name == "dcn" for d in question.on.dims) else []
    found = {f"{chip.name} {f}": (fact_text(chip, f), chip.source_of(f)) for f in named}
    found[f"{model.name} sizes"] = ("in the plan file", model.source)
    for fact, (value, source) in found.items():
        if source:
            yield fact, value, source.checked, source.title, source.url

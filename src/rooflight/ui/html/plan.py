"""A training plan as one HTML file: the answer, its pictures, its reasons and its sources.

In: a `PlanPage` of plain records. Out: a page that needs no other file, no script and no network.
Nothing is computed here; what fills a `PlanPage` formats its numbers.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from rooflight.plan.file.record import Decision
from rooflight.ui.html.page import (
    Grid,
    Link,
    Section,
    bullets,
    code,
    figure,
    folded,
    grid,
    page,
    paragraph,
)
from rooflight.ui.svg.gantt import Gantt, gantt_svg
from rooflight.ui.svg.memory import MemoryStacks, memory_svg
from rooflight.ui.svg.roofline import PlotPoint, RoofLine, roofline_svg
from rooflight.ui.svg.time import TimePlot, time_svg
from rooflight.units import format_si


@dataclass(frozen=True, slots=True)
class PlanFact:
    """A number with its unit, and where it comes from."""

    name: str
    value: str
    source: str


@dataclass(frozen=True, slots=True)
class RoofView:
    """The chip's roof with the matmuls of a step under it, as a picture and as a table."""

    title: str
    roof: RoofLine
    points: tuple[PlotPoint, ...]
    table: Grid
    note: str


@dataclass(frozen=True, slots=True)
class TimeView:
    """Time against batch: the picture, what to read from it, and its numbers."""

    plot: TimePlot
    summary: Grid
    table: Grid
    note: str


@dataclass(frozen=True, slots=True)
class MemoryView:
    """What the best candidates hold, and the parts of the first."""

    stacks: MemoryStacks
    table: Grid
    note: str


@dataclass(frozen=True, slots=True)
class PipelineView:
    """The schedule on a clock."""

    chart: Gantt
    note: str


@dataclass(frozen=True, slots=True)
class PlanPage:
    """Everything that the page shows."""

    title: str
    kicker: str
    answer: str
    why: str
    facts: tuple[PlanFact, ...]
    candidates: Grid
    candidates_note: str
    times: TimeView
    roof: RoofView
    memory: MemoryView
    pipeline: PipelineView | None  # None where the layout has no stages
    reasons: tuple[Decision, ...]
    losers: Grid | None  # None where only one layout fits
    assumptions: tuple[str, ...]
    sources: Grid
    source_links: tuple[Link, ...]  # one for each row of `sources`
    plan_json: str


def plan_html(content: PlanPage) -> str:
    """The whole document."""
    lead = [
        paragraph(content.answer, style="answer"),
        paragraph(content.why, style="note"),
        _facts(content.facts),
    ]
    return page(
        title=content.title, kicker=content.kicker, lead=lead, sections=tuple(_sections(content))
    )


def _sections(content: PlanPage) -> Iterator[Section]:
    note = paragraph(content.candidates_note, style="note")
    yield Section("candidates", "Candidates", (grid(content.candidates), note))
    yield _time_section(content.times)
    yield _roof_section(content.roof)
    yield _memory_section(content.memory)
    if content.pipeline:
        yield _pipeline_section(content.pipeline)
    lost = (grid(content.losers),) if content.losers else ()
    yield Section("choices", "Choices and reasons", (_reasons(content.reasons), *lost))
    yield Section("assumptions", "Assumptions", (bullets(content.assumptions),))
    yield Section("sources", "Sources", (grid(content.sources, links=content.source_links),))
    whole = folded("The plan as JSON, the file that other verbs take", code(content.plan_json))
    yield Section("plan-file", "Plan file", (whole,))


def _time_section(view: TimeView) -> Section:
    missing = [line.label for line in view.plot.lines if not line.points]
    describe = "A line for each of: " + "; ".join(line.label for line in view.plot.drawn) + "."
    note = [paragraph(f"No batch here divides: {', '.join(missing)}.")] if missing else []
    body = (
        figure(time_svg(view.plot), caption=view.note, describe=describe),
        *note,
        grid(view.summary),
        folded("The numbers of this plot", grid(view.table)),
    )
    return Section("time", "Time against batch", body)


def _roof_section(view: RoofView) -> Section:
    describe = "; ".join([view.roof.caption, *(f"matmul {p.caption}" for p in view.points)])
    picture = roofline_svg([view.roof], view.points, title=view.title, width=880, height=420)
    shown = figure(picture, caption=view.note, describe=describe)
    return Section("roofline", "Roofline of the matmuls", (shown, grid(view.table)))


def _memory_section(view: MemoryView) -> Section:
    picture = memory_svg(view.stacks)
    totals = [f"{s.label}: {format_si(s.total, 'B')}" for s in view.stacks.stacks]
    describe = "; ".join([*totals, f"HBM: {format_si(view.stacks.capacity_bytes, 'B')}"])
    shown = figure(picture, caption=view.note, describe=describe)
    return Section("memory", "Memory of a chip", (shown, grid(view.table)))


def _pipeline_section(view: PipelineView) -> Section:
    chart = view.chart
    picture = gantt_svg(chart)
    shown = figure(picture, caption=view.note, describe=chart.caption, least=800)
    return Section("pipeline", "Pipeline", (shown,))


def _facts(facts: Sequence[PlanFact]) -> str:
    cards = [
        f"<div><dt>{escape(f.name)}</dt>"
        f"<dd>{escape(f.value)}<small>{escape(f.source)}</small></dd></div>"
        for f in facts
    ]
    return '<dl class="facts">\n' + "\n".join(cards) + "\n</dl>"


def _reasons(reasons: Sequence[Decision]) -> str:
    rows = [
        f"<dt>{escape(r.what)}: {escape(r.value)}</dt><dd>{escape(r.because)}</dd>" for r in reasons
    ]
    return '<dl class="choices">\n' + "\n".join(rows) + "\n</dl>"

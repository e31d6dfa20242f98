"""A compiled step as one HTML file: the verdict, tables, the schedule on a clock, live memory.

In: a `StepPage` of plain records. Out: a page that needs no other file, no script and no network.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rooflight.ui.html.page import Grid, Section, code, figure, folded, grid, page, paragraph
from rooflight.ui.svg.gantt import Gantt, gantt_svg
from rooflight.ui.svg.live import LivePlot, live_svg
from rooflight.units import format_si

_WIDEST = 900.0
_HOW_TO_READ = "One device. Rest the pointer on a bar for its instruction and its time."


@dataclass(frozen=True, slots=True)
class StepPage:
    """Everything the page shows, formatted."""

    title: str
    kicker: str
    answer: tuple[str, ...]  # the first line is the verdict
    time: Grid | None  # None where it is unknown
    time_note: str
    timelines: tuple[Gantt, ...]
    tables: tuple[Grid, ...]
    texts: tuple[tuple[str, str], ...]  # a heading and a text table, as the terminal shows it
    live: LivePlot | None


def step_html(step: StepPage) -> str:
    """The whole document."""
    lead = [paragraph(step.answer[0], style="answer"), *map(paragraph, step.answer[1:])]
    return page(title=step.title, kicker=step.kicker, lead=lead, sections=list(_sections(step)))


def _sections(step: StepPage) -> Iterator[Section]:
    if step.texts:
        blocks = tuple(code(text) for _, text in step.texts)
        yield Section("tables", step.texts[0][0], blocks)
    yield Section("time", "Time", _time(step))
    if step.timelines:
        yield Section("schedule", "The schedule", tuple(map(_timeline, step.timelines)))
    if step.live:
        yield Section("memory", "Live memory", (_live(step.live),))
    if step.tables:
        yield Section("program", "The program", _folded(step.tables))


def _time(step: StepPage) -> tuple[str, ...]:
    note = paragraph(step.time_note, style="note")
    return (grid(step.time), note) if step.time else (note,)


def _timeline(chart: Gantt) -> str:
    rows = "; ".join(f"{row.label}: {len(row.bars)} bars" for row in chart.rows)
    describe = f"{chart.title}. {chart.caption} {rows}."
    picture = gantt_svg(chart, widest=_WIDEST)
    return figure(picture, caption=_HOW_TO_READ, describe=describe, least=900)


def _live(plot: LivePlot) -> str:
    words = f"At most {format_si(max(plot.nbytes), 'B')}, while {plot.peak_name} runs."
    return figure(live_svg(plot), caption=words, describe=words)


def _folded(tables: Sequence[Grid]) -> tuple[str, ...]:
    """The first table open, the others behind their captions."""
    return (grid(tables[0]), *(folded(table.caption, grid(table)) for table in tables[1:]))

"""Run: the folder of a training run: planned, compiled, measured, and what lies between.

The event log is the answer; `more` is the gap from plan to measurement, where a step was profiled.
"""

import math
import shlex
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from rooflight.errors import UnknownNameError, UsageError
from rooflight.hardware.catalog import load_chip
from rooflight.hardware.slice import parse_slice
from rooflight.measure.reconcile.run import reconcile_run
from rooflight.train.events import FILE as EVENTS
from rooflight.train.events import Event, Goodput, goodput, read_events
from rooflight.train.run import FILE as RUN
from rooflight.train.run import Run, read_run
from rooflight.ui.answer import (
    Answer,
    Column,
    Fact,
    Picture,
    Table,
    ViewLink,
    show_count,
    show_seconds,
    show_share,
)
from rooflight.ui.answers.gap import run_answer
from rooflight.ui.browser.opened import kind_of, list_files, require_small
from rooflight.ui.browser.view import Field, View, ViewQuery
from rooflight.ui.svg.run import RunPlot, run_svg
from rooflight.units import format_count, format_seconds

_MOST_EVENTS = 40  # shown


def answer(question: ViewQuery) -> Answer:
    """How the run went; without a folder, which could be opened."""
    if not question.text("file"):
        return _listed(question)
    folder = _folder(question)
    if (folder / EVENTS).exists():
        require_small(folder / EVENTS)
    events = list(read_events(folder))
    steps = _steps(events)
    run = read_run(folder / RUN) if (folder / RUN).is_file() else None
    if not steps.numbers:
        return Answer(
            (f"{folder.name} has no step yet: {format_count(len(events))} events so far.",),
            tables=tuple(_events(events)),
            command=_command(question),
        )
    spent = goodput(folder)
    planned_s = run.plan.time.step_s if run and _as_planned(run, events) else None
    plot = RunPlot(
        f"{folder.name}: loss and seconds of a step",
        steps.numbers,
        steps.losses,
        steps.seconds,
        steps.begun,
        planned_s,
    )
    return Answer(
        sentences=tuple(_sentences(folder, run, steps, spent, planned_s)),
        facts=tuple(_facts(steps, spent, planned_s)),
        pictures=(
            Picture(
                "steps",
                run_svg(plot),
                f"{format_count(len(steps.numbers))} steps: the loss, and the seconds of a step."
                " Dashed: where an attempt began.",
            ),
        ),
        tables=(_spent_table(spent), *_events(events)),
        command=_command(question),
    )


def _listed(question: ViewQuery) -> Answer:
    found = list_files(question.files, "run")
    words = (
        f"{len(found)} run{'s' * (len(found) != 1)} can be opened."
        if found
        else "No run lies in this folder: `rooflight train PLAN --data TOKENS --out RUN` makes one,"
        " `rooflight explore --open RUN` opens it."
    )
    links = tuple(ViewLink(f"run: {one.name}", "run", (("file", one.name),)) for one in found)
    return Answer((words,), links=links, command="rooflight train --help")


def _folder(question: ViewQuery) -> Path:
    path = question.files.path(question.text("file"))
    if kind_of(path) != "run":
        raise UsageError(
            f"{question.text('file')!r} is not the folder of a run",
            hint="give the folder that `rooflight train` got as --out",
        )
    return path


@dataclass(frozen=True, slots=True)
class _Steps:
    """Every step once, the last time it was done."""

    numbers: tuple[int, ...]
    losses: tuple[float, ...]
    seconds: tuple[float, ...]
    begun: tuple[int, ...]  # the first step of each further attempt


def _steps(events: Sequence[Event]) -> _Steps:
    found: dict[int, tuple[float, float]] = {}
    begun: dict[object, int] = {}
    for event in events:
        if event["event"] == "step":
            step = int(cast(int, event["step"]))
            loss, seconds = (float(cast(float, event[key])) for key in ("loss", "seconds"))
            if math.isfinite(loss) and math.isfinite(seconds):
                found[step] = loss, seconds
                begun.setdefault(event["attempt"], step)
    numbers = tuple(sorted(found))
    return _Steps(
        numbers,
        tuple(found[n][0] for n in numbers),
        tuple(found[n][1] for n in numbers),
        tuple(begun.values())[1:],
    )


def _as_planned(run: Run, events: Sequence[Event]) -> bool:
    """Did it run on chips of the planned kind? Fake devices say nothing about a plan for TPUs."""
    told = [str(e["device"]) for e in events if e["event"] == "compiled" and "device" in e]
    name = run.plan.slice.partition(":")[0].rpartition("*")[2]
    try:
        planned_cpu = load_chip(name).kind == "cpu"
    except UnknownNameError:  # a chip file of one's own that is not named today
        return False
    return bool(told) and planned_cpu == told[-1].lower().startswith("cpu")


def _sentences(
    folder: Path, run: Run | None, steps: _Steps, spent: Goodput, planned_s: float | None
) -> Iterator[str]:
    middle = format_seconds(statistics.median(steps.seconds))
    last = steps.losses[-1]
    what = ""
    if run:
        plan = run.plan
        what = f": {plan.model.title} on {plan.slice}, {plan.layout}"
    count = format_count(len(steps.numbers))
    yield f"{folder.name}{what}: {count} steps, loss {last:.4f}, {middle} per step"
    if planned_s:
        ratio = statistics.median(steps.seconds) / planned_s
        planned = format_seconds(planned_s)
        yield f"Planned: {planned} per step; the median took {ratio:.2f} times as long."
    elif run:
        yield f"Not known to have run on {run.plan.slice}: its time is not held to the plan."
    yield (
        f"Of {format_seconds(spent.wall_s)} since the first event {spent.share:.0%} went into steps"
        f" that count, in {spent.attempts} attempt{'s' * (spent.attempts > 1)}."
    )


def _facts(steps: _Steps, spent: Goodput, planned_s: float | None) -> Iterator[Fact]:
    yield Fact("steps", "steps", len(steps.numbers), show_count)
    yield Fact("loss", "loss", steps.losses[-1], lambda v: f"{v:.4f}", "of the last step")
    median_s = statistics.median(steps.seconds)
    yield Fact("step_s", "a step", median_s, show_seconds, "median, measured")
    yield Fact("planned_s", "planned", planned_s, show_seconds, "the roofline bound")
    yield Fact("goodput", "goodput", spent.share, show_share, "of the time, in steps that count")


def _spent_table(spent: Goodput) -> Table:
    rest = spent.wall_s - spent.steps_s - spent.repeated_s - spent.saving_s
    rows = (
        ("steps that count", spent.steps_s),
        ("steps repeated after a failure", spent.repeated_s),
        ("waiting for a save", spent.saving_s),
        ("starting, compiling, waiting", max(0.0, rest)),
        ("together", spent.wall_s),
    )
    columns = (Column("what", "of the time"), Column("seconds", "seconds", show_seconds))
    return Table("spent", "Where the time went", columns, rows)


def _events(events: Sequence[Event]) -> Iterator[Table]:
    """What happened beside steps, the last first."""
    others = [e for e in events if e["event"] != "step"]
    if not others:
        return
    first = float(cast(float, others[0]["time"]))
    rows = tuple(
        (
            float(cast(float, e["time"])) - first,
            str(e["event"]),
            int(cast(int, e["attempt"])),
            ", ".join(
                f"{k} {v}"[:120] for k, v in e.items() if k not in ("time", "event", "attempt")
            )[:400],
        )
        for e in reversed(others[-_MOST_EVENTS:])
    )
    columns = (
        Column("after_s", "after", show_seconds),
        Column("event", "event"),
        Column("attempt", "attempt"),
        Column("facts", "facts", is_wide=True),
    )
    left = len(others) - len(rows)
    more = f" ({left:,} earlier ones left out)" if left else ""
    yield Table(
        "events", f"What else happened, the last first{more}", columns, rows, is_folded=True
    )


def more(question: ViewQuery) -> Answer:
    """Planned, compiled, measured, and every cause between them."""
    if not question.text("file"):
        return Answer(("Open a run to see the gap between its plan and its measurement.",))
    folder, on = _folder(question), question.text("on")
    if not any((folder / "traces").glob("process-*")):
        return Answer(("No step was profiled: `--profile-at 20` records where the time goes.",))
    found = reconcile_run(folder, parse_slice(on) if on else None)
    return run_answer(found, question.text("file"), on)


def _command(question: ViewQuery) -> str:
    return f"rooflight reconcile {shlex.quote(question.text('file'))}"


VIEW = View(
    "run",
    "Run",
    "A training run as it went: loss, seconds and goodput, and the causes of its gap to the plan.",
    (
        Field("file", "Folder", "text", "", "of `rooflight train --out`", is_optional=True),
        Field("on", "It ran on", "text", "", "if not on what was planned", is_optional=True),
    ),
    answer,
    more,
    is_pure=False,
)

"""`--html` and `--plot`: a compiled step as one HTML file, and its live memory as a picture."""

from rooflight.cli.hlo_page import Shown
from rooflight.cli.time_page import basis_line, time_grid, time_line
from rooflight.compile.hlo.live import LiveBytes
from rooflight.compile.hlo.step import CompiledStep
from rooflight.compile.time.step import CompiledTime
from rooflight.plan.file.record import Time
from rooflight.ui.browser.timeline_chart import timelines
from rooflight.ui.html.step import StepPage
from rooflight.ui.svg.live import LivePlot

ROWS = 60  # of a table in a page


def live_plot(name: str, live: LiveBytes, limit_bytes: int | None) -> LivePlot:
    """Live bytes of main memory along the schedule."""
    peak = live.names[live.peak_at]
    return LivePlot(f"{name}: main memory in use", live.nbytes, peak, limit_bytes)


def step_page(
    step: CompiledStep,
    *,
    kicker: str,
    answer: list[str],
    shown: list[Shown],
    texts: list[tuple[str, str]],
    planned: Time | None,
    time: CompiledTime | None,
    limit_bytes: int | None,
    title: str = "",
) -> StepPage:
    """What the page of a step shows; without a time there is no timeline.

    `title` is by default the name that jax gave the program.
    """
    name = step.module.name
    entry = step.module.entry
    return StepPage(
        title=title or f"{name}, one of {step.module.num_partitions:,} devices",
        kicker=kicker,
        answer=tuple(answer),
        time=time_grid(planned, time) if time else None,
        time_note=basis_line(time) if time else time_line(planned, None),
        timelines=tuple(timelines(time, entry)) if time else (),
        tables=tuple(one.captioned for one in shown),
        texts=tuple(texts),
        live=live_plot(name, step.live, limit_bytes) if step.live else None,
    )

"""What a compiled step takes, in words and as a table, beside what was planned."""

from dataclasses import asdict

from rooflight.cli.hlo_page import Shown
from rooflight.compile.hlo.memory import LiveBytes
from rooflight.compile.hlo.step import CompiledStep
from rooflight.compile.time.op import UNITS
from rooflight.compile.time.step import CompiledTime, Network
from rooflight.plan.file.record import Time
from rooflight.ui.browser.timeline_chart import timelines
from rooflight.ui.html.page import Grid
from rooflight.ui.html.step import StepPage
from rooflight.ui.svg.live import LivePlot
from rooflight.ui.text.table import table
from rooflight.units import format_count, format_seconds

ROWS = 60  # of a table in a page

_WORDS = {"matrix": "matmuls", "kernels": "kernels", "memory": "vector and memory"}
_UNKNOWN = "The compiled step's time is unknown before the executable."
_LEAST = 5e-10  # seconds; less is a scalar's copy


def time_line(planned: Time | None, time: CompiledTime | None) -> str:
    """The compiled step beside the planned one."""
    basis = "by the compiler's estimates and our network model, not measured"
    if planned is None:
        return f"A step takes {format_seconds(time.seconds)} {basis}." if time else _UNKNOWN
    start = f"Planned step: {format_seconds(planned.roofline_s)}"
    if time is None:
        return f"{start}. {_UNKNOWN}"
    ratio = time.seconds / planned.roofline_s
    words = f"the compiled one: {format_seconds(time.seconds)}, {ratio:.2f} times as long"
    return f"{start}; {words} ({basis})."


def basis_line(time: CompiledTime) -> str:
    """Whose figures the time is made of."""
    ops = {basis: format_count(count) for basis, count in time.ops.items()}
    estimated = format_count(time.ops["compiler"] + time.ops["capped"])
    return (
        f"{estimated} of {format_count(sum(time.ops.values()))} ops ({time.known_share:.0%}) carry"
        f" the compiler's cycle estimate, {ops['capped']} of them held to the time their bytes"
        f" take; without one, at a roof: {ops['bound']}; without a figure:"
        f" {format_count(len(time.unknown))}."
    )


def time_grid(planned: Time | None, time: CompiledTime) -> Grid:
    """A row a unit and a row each set of mesh axes, beside the plan if there is one."""
    rows = [
        (_WORDS[unit], _seconds(time.busy_s[unit]), "-", _planned(planned, unit))
        for unit in UNITS
        if time.busy_s.get(unit)
    ]
    rows += [
        (f"network {axes}", *_shares(network), _planned(planned, axes))
        for axes, network in time.network.items()
    ]
    rows += [("copies between memories", *_shares(time.copies), "-")]
    rows += [("together", _seconds(time.seconds), "-", _planned(planned, ""))]
    header = ("of a step", "the chip waits", "meanwhile", "planned")
    width = 4 if planned else 3
    cells = tuple(row[:width] for row in rows)
    return Grid("Where a step goes", header[:width], cells, "lrrr"[:width])


def _planned(planned: Time | None, row: str) -> str:
    if planned is None:
        return ""
    known = {"matrix": planned.matmuls_s, "": planned.roofline_s}
    axes = "+".join(sorted(row.split("+")))
    return _seconds(known.get(row, planned.collectives_s.get(axes, 0.0)))


def _shares(network: Network) -> tuple[str, str]:
    return _seconds(network.exposed_s), _seconds(network.hidden_s)


def _seconds(value: float) -> str:
    return format_seconds(value) if value >= _LEAST else "-"


def time_table(planned: Time | None, time: CompiledTime) -> str:
    """The rows, and whose figures they are."""
    grid = time_grid(planned, time)
    shown = table(grid.header, grid.rows, align=grid.align)
    return f"{shown}\n{basis_line(time)}"


def time_document(time: CompiledTime | None) -> dict[str, object] | None:
    """All but the timeline, for a machine."""
    if time is None:
        return None
    return {
        "seconds": time.seconds,
        "busy_s": dict(time.busy_s),
        "network": {axes: asdict(network) for axes, network in time.network.items()},
        "copies": asdict(time.copies),
        "ops": dict(time.ops),
        "unknown": list(time.unknown),
        "source": "compiler",
    }


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

"""What `rooflight pipeline` shows of a simulated schedule: a line, a chart, a table, a document."""

from dataclasses import asdict
from fractions import Fraction

from rooflight.graph.pipeline import Schedule
from rooflight.plan.pipeline import PipelineRun, TimedGroup
from rooflight.report.gantt import Bar, Gantt, Row
from rooflight.report.table import table

_WORDS = {
    "F": "forward",
    "BW": "both gradients",
    "B": "gradient of the input",
    "W": "gradient of the weights",
}


def answer(found: PipelineRun) -> str:
    """Bubble and activations in a line."""
    peaks = found.peak_activations
    most = max(peaks)
    where = "every device" if min(peaks) == most else f"device {peaks.index(most)}"
    idle = f"{_idle(found, found.bubble_s)} of {found.makespan_s:.4g}"
    return (
        f"bubble {found.bubble:.1%} of the step ({idle}),"
        f" activations of {_plural(most, 'microbatch')} on {where}"
    )


def _amount(count: Fraction | int) -> str:
    return f"{float(count):.5g}"


def _idle(found: PipelineRun, time: float) -> str:
    """A time beside the step, without the rounding of its sums."""
    return f"{round(time / found.makespan_s, 9) * found.makespan_s:.4g}"


def _plural(count: Fraction | int, noun: str) -> str:
    ending = "es" if noun.endswith("ch") else "s"
    return f"{_amount(count)} {noun}{'' if count == 1 else ending}"


def chart_of(found: PipelineRun) -> Gantt:
    """A row a device, a bar a slot."""
    schedule = found.schedule
    size = f"{_plural(schedule.stages, 'stage')}, {_plural(schedule.microbatches, 'microbatch')}"
    virtual = f", {schedule.virtual} virtual stages a device" if schedule.virtual > 1 else ""
    rows = tuple(
        Row(
            str(device),
            tuple(bar for group in groups for bar in _bars(found, device, group)),
            f"holds {_amount(peak)}",
        )
        for device, (groups, peak) in enumerate(
            zip(found.devices, found.peak_activations, strict=True)
        )
    )
    return Gantt(
        title=f"{schedule.name}, {size}{virtual}",
        caption=answer(found),
        rows=rows,
        legend=_WORDS,
        number="microbatch",
        row="device",
        paler=_paler(schedule),
        note="holds: most microbatches whose activations a device keeps at once",
        is_in_seconds=False,
    )


def _paler(schedule: Schedule) -> str:
    if schedule.virtual > 1:
        return "later virtual stages"
    return "from the last device to the first" if schedule.weight_copies > 1 else ""


def _bars(found: PipelineRun, device: int, group: TimedGroup) -> list[Bar]:
    stages = found.schedule.stages
    return [
        Bar(
            kind=slot.kind,
            label=f"{slot.kind}{slot.microbatch}",
            start=group.start_s,
            end=group.end_s,
            tooltip=f"{slot}, {group.start_s:g} to {group.end_s:g}",
            # a second virtual stage, or in DualPipe the way up
            shade=slot.stage // stages or int(slot.stage != device),
            part=part,
            parts=len(group.slots),
        )
        for part, slot in enumerate(group.slots)
    ]


def comparison(others: dict[str, PipelineRun | str]) -> str:
    """A row a schedule; those that cannot be, with the reason, below."""
    header = ("schedule", "step", "bubble", "idle", "idle, no wait", "holds", "weights", "virtual")
    rows = [
        [name, *_cells(found)] for name, found in others.items() if isinstance(found, PipelineRun)
    ]
    reasons = [found for found in others.values() if isinstance(found, str)]
    notes = [
        "idle, no wait: on the worst device when none waits for the others after its last slot"
    ]
    return "\n".join([table(header, rows), *notes, *reasons])


def _cells(found: PipelineRun) -> list[str]:
    return [
        f"{found.makespan_s:.4g}",
        f"{found.bubble:.1%}",
        _idle(found, found.bubble_s),
        _idle(found, found.span_bubble_s),
        _amount(max(found.peak_activations)),
        f"{found.schedule.weight_copies}x",
        str(found.schedule.virtual),
    ]


def document(found: PipelineRun, others: dict[str, PipelineRun | str]) -> dict[str, object]:
    """The JSON document: the numbers, then every slot with its times."""
    slots = [
        [
            {
                "kind": slot.kind,
                "microbatch": slot.microbatch,
                "stage": slot.stage,
                "joined": slot.joined,
                "start": group.start_s,
                "end": group.end_s,
            }
            for group in groups
            for slot in group.slots
        ]
        for groups in found.devices
    ]
    compared = {
        name: _summary(other) if isinstance(other, PipelineRun) else {"impossible": other}
        for name, other in others.items()
    }
    times = {name.removesuffix("_s"): value for name, value in asdict(found.times).items()}
    fields = _summary(found) | {"times": times, "devices": slots}
    return fields | ({"compare": compared} if compared else {})


def _summary(found: PipelineRun) -> dict[str, object]:
    schedule = found.schedule
    return {
        "schedule": schedule.name,
        "stages": schedule.stages,
        "microbatches": schedule.microbatches,
        "virtual": schedule.virtual,
        "makespan": found.makespan_s,
        "bubble": found.bubble,
        "idle": found.bubble_s,
        "idle_without_wait": found.span_bubble_s,
        "peak_activations": [float(peak) for peak in found.peak_activations],
        "peak_in_flight": [float(peak) for peak in found.peak_in_flight],
        "weight_copies": schedule.weight_copies,
    }

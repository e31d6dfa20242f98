"""A simulated pipeline schedule as a chart: a row per device, a bar a slot."""

from fractions import Fraction

from rooflight.models.layout.slots import Schedule
from rooflight.plan.training.time.pipeline import PipelineRun, TimedGroup
from rooflight.ui.svg.gantt import Bar, Gantt, GanttRow

_WORDS = {
    "F": "forward",
    "BW": "both gradients",
    "B": "gradient of the input",
    "W": "gradient of the weights",
}


def pipeline_answer(found: PipelineRun) -> str:
    """Bubble and activations in a line."""
    peaks = found.peak_activations
    most = max(peaks)
    where = "every device" if min(peaks) == most else f"device {peaks.index(most)}"
    lost = f"{idle(found, found.bubble_s)} of {found.makespan_s:.4g}"
    return (
        f"bubble {found.bubble:.1%} of the step ({lost}),"
        f" activations of {_plural(most, 'microbatch')} on {where}"
    )


def amount(count: Fraction | int) -> str:
    """A number of microbatches, which may be a part of one."""
    return f"{float(count):.5g}"


def idle(found: PipelineRun, time: float) -> str:
    """A time beside the step, without the rounding of its sums."""
    return f"{round(time / found.makespan_s, 9) * found.makespan_s:.4g}"


def _plural(count: Fraction | int, noun: str) -> str:
    ending = "es" if noun.endswith("ch") else "s"
    return f"{amount(count)} {noun}{'' if count == 1 else ending}"


def chart_of(found: PipelineRun) -> Gantt:
    """A row per device, a bar a slot."""
    schedule = found.schedule
    size = f"{_plural(schedule.stages, 'stage')}, {_plural(schedule.microbatches, 'microbatch')}"
    virtual = f", {schedule.virtual} virtual stages per device" if schedule.virtual > 1 else ""
    rows = tuple(
        GanttRow(
            str(device),
            tuple(bar for group in groups for bar in _bars(found, device, group)),
            f"holds {amount(peak)}",
        )
        for device, (groups, peak) in enumerate(
            zip(found.devices, found.peak_activations, strict=True)
        )
    )
    return Gantt(
        title=f"{schedule.name}, {size}{virtual}",
        caption=pipeline_answer(found),
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

"""What `rooflight pipeline` shows of a simulated schedule: a line, a chart, a table, a document."""

from dataclasses import asdict

from rooflight.plan.training.time.pipeline import PipelineRun
from rooflight.ui.browser.pipeline_chart import amount, idle
from rooflight.ui.text.table import table


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
        idle(found, found.bubble_s),
        idle(found, found.span_bubble_s),
        amount(max(found.peak_activations)),
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

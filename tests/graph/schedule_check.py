"""Whether the table of a schedule can be a training step; what is wrong with it is named."""

from collections import Counter

from rooflight.errors import ModelError
from rooflight.models.layout.slots import Schedule, homes, run_order


def check_schedule(schedule: Schedule) -> None:
    """Raises a ModelError that names the slot if the table cannot be a training step.

    Every microbatch passes every stage forward and backward exactly once, on one device; every
    slot comes after what it needs in some order that keeps each device's own.
    """
    _check_counts(schedule)
    homes(schedule)
    for _ in run_order(schedule):
        pass


def _check_counts(schedule: Schedule) -> None:
    """Each of F, B and W once for every microbatch and stage, and nothing else."""
    found = Counter(part for slots in schedule.devices for slot in slots for part in slot.done)
    for microbatch in range(schedule.microbatches):
        for stage in range(schedule.num_stages):
            for part in "FBW":
                times = found.pop((part, microbatch, stage), 0)
                if times != 1:
                    raise ModelError(
                        f"{schedule.name}: {part} of microbatch {microbatch} on stage {stage}"
                        f" runs {times} times",
                        hint="every microbatch passes every stage once each way",
                    )
    for part, microbatch, stage in found:
        raise ModelError(
            f"{schedule.name}: {part} of microbatch {microbatch} on stage {stage} is outside the"
            f" {schedule.microbatches} microbatches and {schedule.num_stages} stages",
            hint="number microbatches and stages from 0",
        )

"""How the program of a plan goes through its layers: at once, or as the stages of a pipeline.

In: a `Plan`. Out: `Rounds`: what one round runs, how many there are, what is handed on between
them. Without a pipeline a round is a microbatch and has all layers. With one it is a tick of the
schedule, in which every device runs one of its stages (`program.pipeline_in_step`): forward,
both gradients and the loss, whatever its slot.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from rooflight.graph import Schedule
from rooflight.plan.stages import schedule_table
from rooflight.program.pipeline_layers import staging_of
from rooflight.program.pipeline_table import NOTHING, encode
from rooflight.records import Plan
from rooflight.specs.model import ModelSpec, Repeat


@dataclass(frozen=True, slots=True)
class Rounds:
    """What a device does in a step."""

    runs: tuple[Repeat, ...]  # of one round, padding of uneven stages included
    count: int
    chunks: int = 1  # stages of a device
    permutes: int = 0  # of a round: to the next stage, to the one before


def schedule_of(plan: Plan) -> Schedule | None:
    """The table that the program runs; None without a pipeline."""
    if plan.schedule is None:
        return None
    return schedule_table(
        plan.schedule, stages=plan.stages, microbatches=plan.microbatches, virtual=plan.virtual
    )


def rounds_of(plan: Plan) -> Rounds:
    """Reads the rounds off the very table that the program runs."""
    schedule = schedule_of(plan)
    if schedule is None:
        return Rounds(plan.model.layers, plan.microbatches)
    return _of_schedule(plan.model, schedule)


@lru_cache(maxsize=64)
def _of_schedule(model: ModelSpec, schedule: Schedule) -> Rounds:
    ticks, staging = encode(schedule), staging_of(model, schedule)
    columns = (ticks.from_before, ticks.from_after)
    return Rounds(
        staging.runs,
        len(ticks.work),
        len(staging.layers) // schedule.stages,
        sum(bool(np.any(column != NOTHING)) for column in columns),
    )

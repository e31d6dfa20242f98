"""How the program of a plan goes through its layers: at once, or as the stages of a pipeline.

In: a `Plan`. Out: `Rounds`: what one round runs, how many there are, what is handed on between
them. Without a pipeline a round is a microbatch and has all layers. With one it is a lane of a
tick, in which every device runs one of its stages (`program.pipeline.in_step`): a forward, or the
stage again with the loss and both gradients, whatever its slot.
"""

from dataclasses import dataclass
from functools import lru_cache

from rooflight.models.layout.in_step import in_step
from rooflight.models.layout.slots import Schedule
from rooflight.models.spec import ModelSpec, Repeat
from rooflight.plan.file.record import Plan
from rooflight.plan.training.time.stages import schedule_table
from rooflight.program.pipeline.layers import staging_of
from rooflight.program.pipeline.table import PLACES, encode


@dataclass(frozen=True, slots=True)
class Rounds:
    """What a device does in a step."""

    runs: tuple[Repeat, ...]  # of one round, padding of uneven stages included
    forward: int  # rounds of a forward alone
    backward: int  # rounds of a forward, the loss and both gradients
    ticks: int  # each of one round, or of one of each kind
    chunks: int = 1  # stages of a device
    permutes: int = 0  # of all rounds: to the next stage, to the one before


def schedule_of(plan: Plan) -> Schedule | None:
    """The table that the program runs; None without a pipeline."""
    if plan.schedule is None:
        return None
    return schedule_table(
        plan.schedule, stages=plan.stages, microbatches=plan.microbatches, virtual=plan.virtual
    )


def rounds_of(plan: Plan) -> Rounds:
    """Reads the rounds off the table that the program runs."""
    schedule = schedule_of(plan)
    if schedule is None:
        return Rounds(plan.model.layers, 0, plan.microbatches, plan.microbatches)
    return _of_schedule(plan.model, schedule)


@lru_cache(maxsize=64)
def _of_schedule(model: ModelSpec, schedule: Schedule) -> Rounds:
    ticks, staging = encode(schedule), staging_of(model, schedule)
    rounds = in_step(schedule).rounds
    sent = [sum(place in lane for place in PLACES[:2]) for lane in ticks.lanes.values()]
    return Rounds(
        staging.runs,
        *rounds,
        sum(phase.stop - phase.start for phase in ticks.phases),
        ticks.chunks,
        sum(n * ways for n, ways in zip(rounds, sent, strict=True)),
    )

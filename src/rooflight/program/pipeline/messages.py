"""What the devices of a pipeline hand to each other, when, and where it is kept.

In: a `Schedule` in lock step. Out: each value that one stage makes for another with the entry of
the receiver's buffer that keeps it. No jax.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from rooflight.errors import UsageError
from rooflight.models.layout.in_step import InStep
from rooflight.models.layout.slots import Schedule, homes

Kind = Literal["x", "g"]  # a forward makes the next stage's x, a backward the g of the one before


@dataclass(frozen=True, slots=True)
class StageMessage:
    """A value on its way: made at the end of a tick, and read in later ones by its target."""

    name: Kind
    source: int
    target: int
    made: int
    forward: int | None  # the tick in which a forward reads it
    backward: int  # the tick in which a backward reads it, for the last time


def messages(schedule: Schedule, table: InStep) -> Iterator[StageMessage]:
    """The input of every stage but the first, and the output gradient of all but the last."""
    home = homes(schedule)
    forward, backward = (
        {(slot.microbatch, slot.stage): tick for (tick, _), slot in run.items()}
        for run in (table.forward, table.backward)
    )
    for (microbatch, stage), here in home.items():
        until = backward[microbatch, stage]
        before, after = (microbatch, stage - 1), (microbatch, stage + 1)
        if before in home:
            read = forward.get((microbatch, stage))
            yield StageMessage("x", home[before], here, forward[before], read, until)
        if after in home:
            yield StageMessage("g", home[after], here, backward[after], None, until)


def allot(found: Iterable[StageMessage]) -> Iterator[tuple[StageMessage, int]]:
    """Each message with the lowest entry of its kind and device that is free when it arrives.

    Reads come before writes in a tick: an entry read for the last time can be written then."""
    busy: dict[tuple[str, int], list[int]] = {}  # until when, by entry
    for message in sorted(found, key=lambda m: m.made):
        held = busy.setdefault((message.name, message.target), [])
        free = (entry for entry, until in enumerate(held) if until <= message.made)
        entry = next(free, len(held))
        held[entry : entry + 1] = [message.backward]
        yield message, entry


def column_of(message: StageMessage, schedule: Schedule) -> str:
    """Which column of the table stores it: the one of the neighbour it comes from."""
    step = (message.target - message.source) % schedule.stages
    if step == 0:
        return "from_here"
    if step not in (1, schedule.stages - 1):
        raise UsageError(
            f"{schedule.name}: device {message.source} would send to device {message.target}, which"
            " must be a neighbour",
            hint="place stages that follow each other on neighbouring devices",
        )
    return "from_before" if step == 1 else "from_after"

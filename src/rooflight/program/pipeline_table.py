"""A `Schedule` as arrays: what every device does, reads and stores at every tick.

A tick is one slot on every device at once; a slot starts one tick after the last thing it needs.
Between ticks each device hands its one result to its neighbours:

    F of stage s ends  -> x[microbatch, s + 1] arrives where stage s + 1 lives
    B of stage s ends  -> g[microbatch, s - 1] arrives where stage s - 1 lives

An arrival is stored in an entry of one buffer until the weight gradient that reads it is done.
Entries are reused as soon as they are free (`pipeline_messages`), so the buffer is as long as the
table's largest number of values in flight. In: a `Schedule`. Out: `Ticks`, numpy and no jax.
"""

from dataclasses import dataclass, fields
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from rooflight.errors import UsageError
from rooflight.graph.pipeline import Schedule, Slot
from rooflight.program.pipeline_messages import allot, column_of, messages, start_times

Table = npt.NDArray[np.int32]  # [ticks, devices]
NOTHING = -1  # no entry
PLACES = ("before", "after", "here")  # where a stored value comes from


class Work(NamedTuple):
    """What a device runs in a tick, and whether its stage is at an end of the model."""

    kind: Literal["F", "B", "W", "BW", "idle"]
    is_first: bool = False
    is_last: bool = False


@dataclass(frozen=True, slots=True)
class Ticks:
    """The table of a schedule in lock step; every array is [ticks, devices]."""

    works: tuple[Work, ...]  # each kind of work once
    entries: int  # length of the buffer
    work: Table  # index into `works`
    chunk: Table  # which of the device's own stages
    microbatch: Table
    read_x: Table  # entry of the stage's input
    read_g: Table  # entry of the gradient of its output
    from_before: Table  # entry for what device d - 1 sends, or NOTHING
    from_after: Table  # the same of device d + 1
    from_here: Table  # the same of the device's own result: both stages live on it

    def columns(self) -> dict[str, Table]:
        """The arrays by name."""
        names = (f.name for f in fields(self) if f.name not in ("works", "entries"))
        return {name: getattr(self, name) for name in names}


def stage_order(schedule: Schedule) -> tuple[int, ...]:
    """The stages device by device: stack stage parameters in this order, split them over P.

    >>> from rooflight.graph import make_schedule
    >>> stage_order(make_schedule("interleaved", stages=2, microbatches=2))
    (0, 2, 1, 3)
    """
    if schedule.weight_copies > 1:
        raise UsageError(
            f"{schedule.name} holds every stage on {schedule.weight_copies} devices; the program"
            " keeps each stage once",
            hint="choose zb-v or 1f1b, which hold each stage once",
        )
    return tuple(stage for slots in schedule.devices for stage in sorted({s.stage for s in slots}))


def encode(schedule: Schedule) -> Ticks:
    """The arrays of a schedule. Slots joined in the table run one after the other."""
    order = stage_order(schedule)
    starts, ended = start_times(schedule)
    shape = 1 + max(tick for tick, _ in starts), schedule.stages
    looked_up = ("work", "chunk", "microbatch", "read_x", "read_g")
    columns = {name: np.zeros(shape, np.int32) for name in looked_up}
    columns |= {f"from_{place}": np.full(shape, NOTHING, np.int32) for place in PLACES}
    works = {Work("idle"): 0}
    for now, slot in starts.items():
        work = _work(slot, schedule.num_stages)
        columns["work"][now] = works.setdefault(work, len(works))
        columns["chunk"][now] = order.index(slot.stage) % schedule.virtual
        columns["microbatch"][now] = slot.microbatch
    entries = 1  # at the least: a single stage stores nothing
    for message, entry in allot(messages(schedule, starts, ended), schedule.stages):
        entries = max(entries, entry + 1)
        columns[column_of(message, schedule)][message.made, message.target] = entry
        for now in message.readers:
            columns[f"read_{message.name}"][now] = entry
    return Ticks(works=tuple(works), entries=entries, **columns)


def _work(slot: Slot, num_stages: int) -> Work:
    """The F of the last stage is idle, since its B runs the stage again from its input and nobody
    else waits for the output; the B of the first is, since nobody wants its input's gradient."""
    is_first, is_last = slot.stage == 0, slot.stage == num_stages - 1
    if (slot.kind == "F" and is_last) or (slot.kind == "B" and is_first):
        return Work("idle")
    return Work(slot.kind, is_first, is_last)

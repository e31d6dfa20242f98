"""A `Schedule` in lock step as arrays: what every device does, reads and stores at every tick.

A tick has two lanes, forward and backward; a device has a slot in both, in one or in none
(`models.layout.in_step`). Between ticks each device hands its results to its neighbours:

    F of stage s ends  -> x[microbatch, s + 1] arrives where stage s + 1 lives
    B of stage s ends  -> g[microbatch, s - 1] arrives where stage s - 1 lives

An arrival is stored in an entry of its lane's buffer until the backward that reads it is done.
Entries are reused as soon as they are free (`pipeline_messages`), so a buffer is as long as the
table's largest number of values in flight. In: a `Schedule`. Out: `Ticks`, numpy and no jax.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt

from rooflight.errors import UsageError
from rooflight.models.layout.in_step import Now, in_step
from rooflight.models.layout.slots import Schedule, Slot
from rooflight.program.pipeline.messages import allot, column_of, messages

Table = npt.NDArray[Any]  # [ticks, devices] of integers or flags
NOTHING = -1  # no entry
PLACES = ("from_before", "from_after", "from_here")  # devices d - 1, d + 1 and d itself
FLAGS = ("does", "is_first", "is_last")
LOOKED_UP = ("chunk", "microbatch", "read_x", "read_g")
Lane = dict[
    str, Table
]  # FLAGS and LOOKED_UP by name; of PLACES those from which a value is ever stored


@dataclass(frozen=True, slots=True)
class Phase:
    """Ticks one after the other in which the same lanes are run."""

    start: int
    stop: int
    lanes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Ticks:
    """The table of a schedule in lock step."""

    entries: Mapping[str, int]  # length of the buffer that a lane fills
    lanes: Mapping[str, Lane]  # "forward" and "backward"

    @property
    def phases(self) -> list[Phase]:
        """Ticks with forwards alone, with both, with backwards alone; those with none are left."""
        runs = np.stack([lane["does"].any(axis=1) for lane in self.lanes.values()], axis=1)
        found: list[Phase] = []
        start = 0
        for now, ticks in groupby(runs.tolist()):
            stop = start + len(list(ticks))
            if any(now):
                lanes = tuple(name for name, run in zip(self.lanes, now, strict=True) if run)
                found.append(Phase(start, stop, lanes))
            start = stop
        return found

    @property
    def chunks(self) -> int:
        """Stages of a device."""
        return 1 + int(max(lane["chunk"].max() for lane in self.lanes.values()))


def stage_order(schedule: Schedule) -> tuple[int, ...]:
    """The stages device by device: stack stage parameters in this order, split them over P.

    >>> from rooflight.models.layout.schedules import make_schedule
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
    """The arrays of a schedule."""
    order, table = stage_order(schedule), in_step(schedule)
    shape = table.ticks, schedule.stages
    lanes = {
        "forward": _lane(table.forward, shape, order, schedule),
        "backward": _lane(table.backward, shape, order, schedule),
    }
    entries = dict.fromkeys(lanes, 1)  # at the least: a single stage stores nothing
    for message, entry in allot(messages(schedule, table)):
        lane = "forward" if message.name == "x" else "backward"
        entries[lane] = max(entries[lane], entry + 1)
        place = lanes[lane].setdefault(
            column_of(message, schedule), np.full(shape, NOTHING, np.int32)
        )
        place[message.made, message.target] = entry
        lanes["backward"][f"read_{message.name}"][message.backward, message.target] = entry
        if message.forward is not None:
            lanes["forward"]["read_x"][message.forward, message.target] = entry
    return Ticks(entries, lanes)


def _lane(
    slots: Mapping[Now, Slot], shape: tuple[int, int], order: tuple[int, ...], schedule: Schedule
) -> Lane:
    lane: Lane = {name: np.zeros(shape, np.bool_) for name in FLAGS}
    lane |= {name: np.zeros(shape, np.int32) for name in LOOKED_UP}
    for now, slot in slots.items():
        lane["does"][now] = True
        lane["chunk"][now] = order.index(slot.stage) % schedule.virtual
        lane["microbatch"][now] = slot.microbatch
        lane["is_first"][now] = slot.stage == 0
        lane["is_last"][now] = slot.stage == schedule.num_stages - 1
    return lane

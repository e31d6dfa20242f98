"""A schedule in lock step: a tick is at most one forward and one backward on every device.

    ticks   F F F FB FB FB ... FB B B B      F: some device runs a forward; B: both gradients

All devices of a tick run the same ops, so a tick takes as long as a forward if any device has one,
and as long as a backward if any has one; the table is packed so that few have only a few. Each
kind keeps the order of the schedule. A backward waits for the forwards that come before it in
the schedule (so GPipe stays GPipe), a forward waits for no backward: twice as many microbatches
are in flight as without lock step, and none of the ticks is lost:

    gpipe, 1f1b    M + S - 2 forwards and M + S - 1 backwards, where without lock step
                   both are M + S - 1 (the last stage's forward is part of its backward)
    interleaved    M v + S - 2 and M v + S - 1, M // S divides M

The two gradients run as one: apart, each would run its stage again, which costs more than the
bubble that the zero-bubble schedules save. They are then 1F1B, down, or down and up again.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import TypeAlias

from rooflight.models.layout.slots import Schedule, Slot

Now: TypeAlias = tuple[int, int]  # tick, device


@dataclass(frozen=True, slots=True)
class InStep:
    """The slots of every tick and device that has one."""

    forward: Mapping[Now, Slot]  # none of the last stage, whose backward runs it anyway
    backward: Mapping[Now, Slot]  # both gradients

    @property
    def ticks(self) -> int:
        return 1 + max(tick for tick, _ in self.backward)

    @property
    def rounds(self) -> tuple[int, int]:
        """Ticks in which any device has a forward, and those in which any has a backward."""
        forward, backward = ({tick for tick, _ in run} for run in (self.forward, self.backward))
        return len(forward), len(backward)


@lru_cache(maxsize=64)
def in_step(schedule: Schedule) -> InStep:
    """Packs the slots of a schedule, each into the first tick that it can run in.

    >>> from rooflight.models.layout.schedules import make_schedule
    >>> in_step(make_schedule("1f1b", stages=4, microbatches=8)).rounds
    (10, 11)
    """
    last = schedule.num_stages - 1
    queues = [_Queue(slots) for slots in schedule.devices]
    ended: dict[tuple[str, int, int], int] = {}
    forward: dict[Now, Slot] = {}
    backward: dict[Now, Slot] = {}
    tick = 0
    while any(queue.backward for queue in queues):
        for device, queue in enumerate(queues):
            slot = queue.next_forward(ended, tick)
            if slot:
                ended["F", slot.microbatch, slot.stage] = tick
                if slot.stage < last:
                    forward[tick, device] = slot
            slot = queue.next_backward(ended, tick, last)
            if slot:
                ended["B", slot.microbatch, slot.stage] = tick
                backward[tick, device] = slot
        tick += 1
    return InStep(forward, backward)


class _Queue:
    """What a device has still to run, next first; a backward knows how many forwards it awaits."""

    def __init__(self, slots: tuple[Slot, ...]) -> None:
        self.done = 0
        self.forward = [slot for slot in slots if slot.kind == "F"][::-1]
        before = accumulate(slot.kind == "F" for slot in slots)
        counted = zip(before, slots, strict=True)
        self.backward = [(n, slot) for n, slot in counted if "B" in slot.kind][::-1]

    def next_forward(self, ended: Mapping[tuple[str, int, int], int], tick: int) -> Slot | None:
        if not self.forward:
            return None
        slot = self.forward[-1]
        if slot.stage and ended.get(("F", slot.microbatch, slot.stage - 1), tick) >= tick:
            return None
        self.done += 1
        return self.forward.pop()

    def next_backward(
        self, ended: Mapping[tuple[str, int, int], int], tick: int, last: int
    ) -> Slot | None:
        if not self.backward or self.done < self.backward[-1][0]:
            return None
        _, slot = self.backward[-1]
        after = ("B", slot.microbatch, slot.stage + 1)
        if slot.stage < last and ended.get(after, tick) >= tick:
            return None
        return self.backward.pop()[1]

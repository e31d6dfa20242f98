"""What the devices of a pipeline hand to each other, when, and where it is kept.

In: a `Schedule`. Out: the tick of every slot, and each value that one stage makes for another with
the entry of the receiver's buffer that keeps it. No jax.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from rooflight.errors import UsageError
from rooflight.graph.pipeline import Done, Schedule, Slot, homes, run_order

Now: TypeAlias = tuple[int, int]  # tick, device


@dataclass(frozen=True, slots=True)
class Message:
    """A value on its way: made at the end of a tick, and read last at `until`."""

    name: Literal["x", "g"]
    source: int
    target: int
    made: int
    until: int
    readers: tuple[Now, ...]


def start_times(schedule: Schedule) -> tuple[dict[Now, Slot], dict[Done, int]]:
    """The slot at each busy (tick, device), and the tick at which each part is done."""
    starts: dict[Now, Slot] = {}
    ended: dict[Done, int] = {}
    free = [0] * schedule.stages
    for device, group in run_order(schedule):
        for slot in group:
            needed = (ended[need] + 1 for need in slot.needs(schedule.num_stages))
            tick = max((free[device], *needed))
            starts[tick, device] = slot
            ended |= dict.fromkeys(slot.done, tick)
            free[device] = tick + 1
    return starts, ended


def messages(
    schedule: Schedule, starts: dict[Now, Slot], ended: dict[Done, int]
) -> Iterable[Message]:
    """The input of every stage but the first, and the output gradient of all but the last."""
    home = homes(schedule)
    slots: dict[tuple[int, int], list[Now]] = {}
    for now, slot in starts.items():
        slots.setdefault((slot.microbatch, slot.stage), []).append(now)
    for microbatch, stage in home:
        here, readers = home[microbatch, stage], slots[microbatch, stage]
        until = ended["W", microbatch, stage]
        for name, sender in _senders(stage):
            if (microbatch, sender) in home:
                made = ended["F" if name == "x" else "B", microbatch, sender]
                late = tuple(now for now in readers if now[0] > made)
                yield Message(name, home[microbatch, sender], here, made, until, late)


def _senders(stage: int) -> tuple[tuple[Literal["x", "g"], int], ...]:
    return ("x", stage - 1), ("g", stage + 1)


def allot(found: Iterable[Message], devices: int) -> Iterable[tuple[Message, int]]:
    """Each message with the lowest entry of its device that is free when it arrives.

    Reads come before writes in a tick: an entry read for the last time can be written then."""
    busy: list[list[int]] = [[] for _ in range(devices)]  # until when, by entry
    for message in sorted(found, key=lambda m: (m.made, m.name)):
        held = busy[message.target]
        free = (entry for entry, until in enumerate(held) if until <= message.made)
        entry = next(free, len(held))
        held[entry : entry + 1] = [message.until]
        yield message, entry


def column_of(message: Message, schedule: Schedule) -> str:
    """Which column of the table stores it: the one of the neighbour it comes from."""
    step = (message.target - message.source) % schedule.stages
    if step == 0:
        return "from_here"
    if step not in (1, schedule.stages - 1):
        raise UsageError(
            f"{schedule.name}: device {message.source} would send to device {message.target}, which"
            " is no neighbour",
            hint="place stages that follow each other on neighbouring devices",
        )
    return "from_before" if step == 1 else "from_after"

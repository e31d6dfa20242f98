"""`Schedule`: what each device of a pipeline does, in order, as a table.

A table holds no times: the simulator gives it durations, the program runs it as it stands.
`layout/schedules.py` writes the published ones; any other table can be checked here.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from rooflight.errors import ModelError

SlotKind = Literal["F", "B", "W", "BW"]
Done: TypeAlias = tuple[str, int, int]  # F, B or W; microbatch; stage


@dataclass(frozen=True, slots=True)
class Slot:
    """One piece of work: forward, input gradient, weight gradient, or both gradients at once."""

    kind: SlotKind
    microbatch: int
    stage: int  # of all virtual stages, in the order of the layers
    joined: bool = False  # runs together with the slot before it, as one

    def __str__(self) -> str:
        return f"{self.kind} of microbatch {self.microbatch} on stage {self.stage}"

    @property
    def done(self) -> tuple[Done, ...]:
        """What is finished when it ends."""
        return tuple((part, self.microbatch, self.stage) for part in self.kind)

    def needs(self, num_stages: int) -> tuple[Done, ...]:
        """What must be finished before it starts: F after the F of the stage before, B after the
        B of the next stage and its own F, W after its own B."""
        here, before, after = self.stage, self.stage - 1, self.stage + 1
        if self.kind == "F":
            return (("F", self.microbatch, before),) if here > 0 else ()
        if self.kind == "W":
            return (("B", self.microbatch, here),)
        own: Done = ("F", self.microbatch, here)
        return (own, ("B", self.microbatch, after)) if after < num_stages else (own,)


Group: TypeAlias = tuple[Slot, ...]  # slots that a device runs as one


@dataclass(frozen=True, slots=True)
class Schedule:
    """The ordered slots of every device; `stages` devices with `virtual` stages each."""

    name: str
    stages: int
    microbatches: int
    virtual: int
    devices: tuple[tuple[Slot, ...], ...]

    @property
    def num_stages(self) -> int:
        """Pieces the layers are cut into."""
        return self.stages * self.virtual

    @property
    def weight_copies(self) -> int:
        """How often the weights of a stage are held: 2 when both directions share the devices."""
        held = max(len({slot.stage for slot in slots}) for slots in self.devices)
        return held // self.virtual


def join(*slots: Slot) -> Group:
    """Marks slots, none of them joined yet, as one group."""
    return (*slots[:1], *(replace(slot, joined=True) for slot in slots[1:]))


def groups(slots: tuple[Slot, ...]) -> list[Group]:
    """The slots of a device, those that run as one together."""
    found: list[list[Slot]] = []
    for slot in slots:
        if slot.joined and found:
            found[-1].append(slot)
        else:
            found.append([slot])
    return [tuple(group) for group in found]


def run_order(schedule: Schedule) -> Iterator[tuple[int, Group]]:
    """Every group with its device, no group before what it needs.

    Each device takes its own groups in order and waits for the others; a table in which all
    wait is a ModelError that names the first slot that cannot start.
    """
    queues = [groups(slots) for slots in schedule.devices]
    at = [0] * len(queues)
    done: set[Done] = set()
    waiting: dict[Done, int] = {}  # what a device waits for: a device waits for one thing at a time
    ready = list(reversed(range(len(queues))))
    while ready:
        device = ready.pop()
        while at[device] < len(queues[device]):
            group = queues[device][at[device]]
            missing = _missing(group, done, schedule.num_stages)
            if missing is not None:
                waiting[missing] = device
                break
            yield device, group
            at[device] += 1
            for part in (part for slot in group for part in slot.done):
                done.add(part)
                if part in waiting:
                    ready.append(waiting.pop(part))
    _check_all_ran(schedule, queues, at, done)


def _missing(group: Group, done: set[Done], num_stages: int) -> Done | None:
    needed = (need for slot in group for need in slot.needs(num_stages))
    return next((need for need in needed if need not in done), None)


def _check_all_ran(
    schedule: Schedule, queues: list[list[Group]], at: list[int], done: set[Done]
) -> None:
    for device, (queue, ran) in enumerate(zip(queues, at, strict=True)):
        if ran == len(queue):
            continue
        for slot in queue[ran]:
            need = _missing((slot,), done, schedule.num_stages)
            if need is not None:
                part, microbatch, stage = need
                raise ModelError(
                    f"{schedule.name}: device {device} can never start {slot}: {part} of"
                    f" microbatch {microbatch} on stage {stage} does not come before it",
                    hint="put the slot after what it needs; F, then B, then W of a stage",
                )


def homes(schedule: Schedule) -> dict[tuple[int, int], int]:
    """The device of every microbatch and stage: where its F leaves what its B and W read."""
    found: dict[tuple[int, int], int] = {}
    for device, slots in enumerate(schedule.devices):
        for slot in slots:
            first = found.setdefault((slot.microbatch, slot.stage), device)
            if first != device:
                raise ModelError(
                    f"{schedule.name}: {slot} is on device {device}, but other work of that"
                    f" microbatch and stage is on device {first}",
                    hint="keep F, B and W of a microbatch and stage on one device",
                )
    return found

"""A pipeline schedule with times: when each slot runs, the bubble, the activations held.

In: a `Schedule` and how long a forward, an input gradient, a weight gradient and a transfer take.
Out: a `PipelineRun`. Transfers run beside the work; a link carries one at a time each way.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import accumulate, pairwise
from typing import cast

from rooflight.errors import UsageError
from rooflight.models.layout.in_step import in_step
from rooflight.models.layout.slots import Done, Group, Schedule, Slot, SlotKind, homes, run_order


@dataclass(frozen=True, slots=True)
class SlotTimes:
    """Times of one microbatch on one device, all its virtual stages together."""

    forward_s: float
    backward_input_s: float
    backward_weight_s: float
    transfer_s: float = 0.0  # one hop of activations or gradients, however many virtual stages
    joined_s: float | None = None  # a forward joined to a backward; None: one after the other

    def __post_init__(self) -> None:
        given = (self.forward_s, self.backward_input_s, self.backward_weight_s, self.transfer_s)
        if min(given) < 0 or (self.joined_s or 0) < 0 or self.total_s <= 0:
            raise UsageError(
                f"times of a slot cannot be {', '.join(f'{t:g}' for t in given)}",
                hint="give seconds of at least 0 that are not all 0",
            )

    @property
    def total_s(self) -> float:
        """Work of one microbatch on one device."""
        return self.forward_s + self.backward_input_s + self.backward_weight_s

    def of_slot(self, slot: Slot) -> float:
        """Seconds of a slot on its own if it were the device's only virtual stage."""
        return sum(self.of_part(part) for part in slot.kind)

    def of_part(self, part: str) -> float:
        """Seconds of F, B or W."""
        parts = {"F": self.forward_s, "B": self.backward_input_s, "W": self.backward_weight_s}
        return parts[part]

    def of_group(self, group: Group) -> float:
        """Seconds of slots that run as one."""
        if len(group) > 1 and self.joined_s is not None:
            return self.joined_s
        return sum(map(self.of_slot, group))


@dataclass(frozen=True, slots=True)
class TimedGroup:
    """Slots that run as one, and when."""

    slots: Group
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class PipelineRun:
    """One training step of a schedule: the groups of every device in order."""

    schedule: Schedule
    times: SlotTimes
    devices: tuple[tuple[TimedGroup, ...], ...]

    @property
    def makespan_s(self) -> float:
        """From the first start to the last end, over all devices."""
        return max(groups[-1].end_s for groups in self.devices)

    @property
    def busy_s(self) -> tuple[float, ...]:
        """Seconds each device works."""
        return tuple(sum(g.end_s - g.start_s for g in groups) for groups in self.devices)

    @property
    def bubble_s(self) -> float:
        """Idle seconds of a device, on average, when all wait for the last before the update."""
        waits = (groups[0].start_s + self.makespan_s - groups[-1].end_s for groups in self.devices)
        return (sum(waits) + sum(self._gaps_s)) / len(self.devices)

    @property
    def bubble(self) -> float:
        """The idle part of the makespan."""
        return self.bubble_s / self.makespan_s

    @property
    def span_bubble_s(self) -> float:
        """Idle seconds within a device's own first start and last end, on the worst device.

        What is left when a device begins its next step without waiting for the others, which
        zero-bubble schedules count on: they check the gradient norm after the update.
        """
        return max(self._gaps_s)

    @property
    def _gaps_s(self) -> tuple[float, ...]:
        """Seconds each device waits between its slots; without rounding 0 if it never does."""
        return tuple(
            sum(after.start_s - before.end_s for before, after in pairwise(groups))
            for groups in self.devices
        )

    @property
    def peak_in_flight(self) -> tuple[Fraction, ...]:
        """Most microbatches on each device between their F and the end of their B.

        Counted in the activations of a device's whole share of the layers: with v virtual
        stages a slot holds 1/v.
        """
        return self._peaks(until="B")

    @property
    def peak_activations(self) -> tuple[Fraction, ...]:
        """The same until the end of W: what is held when nothing is freed before."""
        return self._peaks(until="W")

    def _peaks(self, *, until: str) -> tuple[Fraction, ...]:
        size = Fraction(1, self.schedule.virtual)
        return tuple(size * _peak(groups, until) for groups in self.devices)


def _peak(groups: Iterable[TimedGroup], until: str) -> int:
    """A group's forwards begin before anything in it ends."""
    changes: list[int] = []
    for group in groups:
        changes.append(sum(slot.kind == "F" for slot in group.slots))
        changes.append(-sum(until in slot.kind for slot in group.slots))
    return max(accumulate(changes))


def simulate_pipeline(schedule: Schedule, times: SlotTimes) -> PipelineRun:
    """Runs the table: a group starts when its device is free and all it needs has arrived.

    GPipe and 1F1B: makespan (M + S - 1) * (t_f + t_b + t_w) without transfers, so the bubble is
    (S - 1) / (M + S - 1) of it (the slides' rule, with K stages).

    >>> from rooflight.models.layout.schedules import make_schedule
    >>> table = make_schedule("gpipe", stages=4, microbatches=8)
    >>> round(simulate_pipeline(table, SlotTimes(1, 1, 1)).bubble, 4)
    0.2727
    """
    links = _StageLinks(homes(schedule), times.transfer_s)
    free = [0.0] * schedule.stages
    timed: list[list[TimedGroup]] = [[] for _ in range(schedule.stages)]
    for device, group in run_order(schedule):
        needed = (need for slot in group for need in slot.needs(schedule.num_stages))
        start = max([free[device], *(links.arrival(need, device) for need in needed)])
        end = start + times.of_group(group) / schedule.virtual
        free[device] = end
        links.send([part for slot in group for part in slot.done], device, end)
        timed[device].append(TimedGroup(group, start, end))
    return PipelineRun(schedule, times, tuple(map(tuple, timed)))


def run_in_step(schedule: Schedule, times: SlotTimes) -> PipelineRun:
    """The table as our program runs it: no device begins a tick before all have ended the last.

    A tick lasts as long as a forward if any device has one, and as both gradients if any has them.
    Transfers run beside the work of their tick.
    """
    table = in_step(schedule)
    lanes = ((table.forward, "F"), (table.backward, "BW"))
    lasts = {
        kind: sum(times.of_part(part) for part in kind) / schedule.virtual for _, kind in lanes
    }
    timed: list[list[TimedGroup]] = [[] for _ in range(schedule.stages)]
    start = 0.0
    for tick in range(table.ticks):
        for slots, kind in lanes:
            ran = [d for d in range(schedule.stages) if (tick, d) in slots]
            end = start + lasts[kind] if ran else start
            for device in ran:
                slot = replace(slots[tick, device], kind=cast(SlotKind, kind), joined=False)
                timed[device].append(TimedGroup((slot,), start, end))
            start = end
    return PipelineRun(schedule, times, tuple(map(tuple, timed)))


class _StageLinks:
    """When results are where; a link between two devices carries one transfer at a time."""

    def __init__(self, homes: Mapping[tuple[int, int], int], transfer_s: float) -> None:
        self._homes = homes
        self._transfer_s = transfer_s
        self._free: dict[tuple[int, int], float] = {}
        self._arrivals: dict[tuple[Done, int], float] = {}

    def send(self, parts: Iterable[Done], device: int, end_s: float) -> None:
        """Keeps results for this device's own use and sends each to where it is needed next."""
        for part in parts:
            kind, microbatch, stage = part
            self._arrivals[part, device] = end_s
            target = self._homes.get((microbatch, stage + (1 if kind == "F" else -1)), device)
            if kind != "W" and target != device:
                link = device, target
                self._free[link] = max(end_s, self._free.get(link, 0.0)) + self._transfer_s
                self._arrivals[part, target] = self._free[link]

    def arrival(self, part: Done, device: int) -> float:
        """When a device has a result."""
        return self._arrivals[part, device]

"""The memory of a trace: what allocators held at their peak, and what each program needs for it.

In: a `Trace`. Out: an `AllocatorPeak` for every device whose allocator was traced (TPUs and GPUs),
and a `ProgramPeak` for every compiled program the trace carries, from its buffer assignment.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from rooflight.measure.trace.events import MISSING
from rooflight.measure.trace.record import Thread, Trace
from rooflight.measure.trace.wire import BYTES, I64, Data, Malformed, WireField, fields, text

_EVENTS = frozenset({"MemoryAllocation", "MemoryDeallocation"})
_HELD = ("bytes_allocated", "bytes_reserved", "bytes_available")
_OWNER = ("index_on_host", "device_ordinal", "allocator_name")  # the first that an event has
_SIGN = {0: 1, 1: -1}  # of a heap's events: allocated, freed; a third kind shares and takes nothing
_MAIN = 0  # the colour of a device's main memory
_FIXED = (3, 5, 7, 12)  # of an allocation: one thread's, a parameter, an output, a constant


@dataclass(frozen=True, slots=True)
class AllocatorPeak:
    """The instant at which an allocator held the most."""

    device: str
    allocated_bytes: int  # arrays
    reserved_bytes: int  # by programs, for what is temporary
    free_bytes: int

    @property
    def nbytes(self) -> int:
        return self.allocated_bytes + self.reserved_bytes


@dataclass(frozen=True, slots=True)
class ProgramPeak:
    """Main memory of one program: arguments, outputs and constants, and what is temporary."""

    name: str
    fixed_bytes: int
    temporary_bytes: int
    largest: tuple[tuple[str, int], ...]  # temporary buffers alive at the peak, by instruction

    @property
    def nbytes(self) -> int:
        return self.fixed_bytes + self.temporary_bytes


def allocator_peaks(trace: Trace) -> tuple[AllocatorPeak, ...]:
    """Of every device, in the order of their numbers."""
    found: dict[tuple[str, str], AllocatorPeak] = {}
    for thread in trace.threads:
        for owner, held in _held(thread):
            total = held[0] + held[1]
            at = int(np.argmax(total))
            name = f"{thread.host} {owner}".strip()
            peak = AllocatorPeak(name, *(int(column[at]) for column in held))
            before = found.get((thread.host, owner))
            if before is None or peak.nbytes > before.nbytes:
                found[thread.host, owner] = peak
    return tuple(found[key] for key in sorted(found, key=lambda key: (key[0], len(key[1]), key)))


def _held(thread: Thread) -> Iterator[tuple[str, I64]]:
    """Bytes allocated, reserved and free by event, of each allocator that the thread used."""
    events = thread.events
    kinds = [k for k in np.unique(events.kind).tolist() if thread.event_name(k) in _EVENTS]
    mine = events.pick(np.isin(events.kind, kinds) & events.has(_HELD[0]))
    by = next((name for name in _OWNER if mine.has(name).any()), None)
    if by is None:
        return
    named = thread.names.texts(mine.stat(by)) if by == "allocator_name" else {}
    held = np.stack([mine.stat(name) for name in _HELD])
    held[held == MISSING] = 0
    for owner in np.unique(mine.stat(by)).tolist():
        if owner != MISSING:
            yield named.get(owner, f"device {owner}"), held[:, mine.stat(by) == owner]


def program_peaks(trace: Trace) -> tuple[ProgramPeak, ...]:
    """Of every program with a buffer assignment, the largest first."""
    found: dict[str, ProgramPeak] = {}
    for plane, number in ((p, number) for p in trace.programs for number in p.kind_ids()):
        with suppress(Malformed):  # of the memory of a program alone; its ops were read before
            kind = plane.kind(number)
            proto = kind.stats.get("Hlo Proto")
            if isinstance(proto, bytes):
                found[kind.name] = _peak(kind.name, proto)
    used = (peak for peak in found.values() if peak.nbytes)
    return tuple(sorted(used, key=lambda peak: -peak.nbytes))


def _peak(name: str, proto: bytes) -> ProgramPeak:
    """HloProto: buffer assignment 3. BufferAssignmentProto: buffers 1, allocations 3, heaps 4."""
    assigned = [p for p in _parts(proto, WireField(0, BYTES, len(proto), 0)) if p.number == 3]
    parts = [p for assignment in assigned for p in _parts(proto, assignment)]
    numbers = [(p, _numbers(proto, p)) for p in parts]
    buffers = [n for p, n in numbers if p.number == 1 and n.get(4, _MAIN) == _MAIN]
    sizes = {n.get(1, 0): n.get(2, 0) for n in buffers}
    own = [n for p, n in numbers if p.number == 3 and n.get(8, _MAIN) == _MAIN]
    fixed = sum(n.get(2, 0) for n in own if any(n.get(flag) for flag in _FIXED))
    heaps = (_alive(proto, p, sizes) for p, _ in numbers if p.number == 4)
    largest = sorted(max(heaps, key=_total, default={}).values(), key=lambda one: -one[1])
    whole_bytes = sum(n.get(2, 0) for n in own)
    return ProgramPeak(name, fixed, whole_bytes - fixed, tuple(largest))


def _alive(proto: Data, heap: WireField, sizes: Mapping[int, int]) -> dict[int, tuple[str, int]]:
    """What is alive at the peak. Events 1 of a heap: kind 1, buffer 2, instruction 4."""
    events = [(event, _numbers(proto, event)) for event in _parts(proto, heap)]
    held, most, peak = 0, 0, 0
    for at, (_, said) in enumerate(events):
        held += _SIGN.get(said.get(1, 0), 0) * sizes.get(said.get(2, 0), 0)
        if held > most:
            most, peak = held, at + 1
    alive: dict[int, tuple[str, int]] = {}
    for event, said in events[:peak]:
        buffer, sign = said.get(2, 0), _SIGN.get(said.get(1, 0), 0)
        if sign > 0:
            names = [text(proto, f) for f in _parts(proto, event) if f.number == 4]
            alive[buffer] = (names[-1] if names else "unnamed", sizes.get(buffer, 0))
        elif sign < 0:
            alive.pop(buffer, None)
    return alive


def _total(alive: Mapping[int, tuple[str, int]]) -> int:
    return sum(size for _, size in alive.values())


def _parts(data: Data, found: WireField) -> list[WireField]:
    return [f for f in fields(data, found.start, found.stop) if f.wire == BYTES]


def _numbers(data: Data, found: WireField) -> dict[int, int]:
    own = fields(data, found.start, found.stop)
    return {f.number: f.signed for f in own if f.wire != BYTES}

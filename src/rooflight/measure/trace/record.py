"""A trace as devices with their ops, steps and roofs, and a host with its threads.

Records only; `read` makes them, `table` and `overlap` read them.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rooflight.hardware.chip import Chip
from rooflight.measure.trace.classify import OpClass
from rooflight.measure.trace.events import Events
from rooflight.measure.trace.wire import I64, Malformed
from rooflight.measure.trace.xspace import Plane

SECONDS = 1e-12  # of a picosecond
F64 = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class TraceOp:
    """What was run: one instruction of a program, however often it ran."""

    name: str
    op_class: OpClass
    layer: str
    line: str  # of the source
    flops: float | None  # of one execution
    nbytes: int | None


@dataclass(frozen=True, slots=True)
class Timeline:
    """Executions of ops, each an index into `ops` and a span of picoseconds."""

    ops: tuple[TraceOp, ...]
    which: I64
    start_ps: I64
    stop_ps: I64

    @classmethod
    def empty(cls) -> "Timeline":
        none = np.zeros(0, dtype=np.int64)
        return cls((), none, none, none)

    def __len__(self) -> int:
        return len(self.which)


@dataclass(frozen=True, slots=True)
class TraceStep:
    """From the start of a step to the start of the next; the last one ends with its last op."""

    name: str
    start_ps: int
    stop_ps: int

    @property
    def seconds(self) -> float:
        return (self.stop_ps - self.start_ps) * SECONDS


@dataclass(frozen=True, slots=True)
class Peaks:
    """What a device could do at most, and who says so; None is unknown."""

    flops_per_s: float | None
    hbm_bytes_per_s: float | None
    source: str


@dataclass(frozen=True, slots=True)
class TraceDevice:
    """One device: what ran on it, what flew meanwhile, its steps."""

    name: str
    kind: str  # "TPU v6 Lite"; empty if the trace does not say
    work: Timeline
    flights: Timeline  # asynchronous ops from their start to their end
    steps: tuple[TraceStep, ...]
    roof: Peaks
    host: str = ""  # where several hosts were read; their clocks are not compared


@dataclass(frozen=True, slots=True)
class Thread:
    """A thread of the host; `names` is where its events are named."""

    name: str
    events: Events
    names: Plane
    host: str = ""

    def event_name(self, kind: int) -> str:
        """What an event is called; a damaged name is no reason to refuse a trace that was read."""
        try:
            return self.names.kind(kind).name
        except Malformed:
            return f"unreadable {kind}"


@dataclass(frozen=True, slots=True)
class Trace:
    """What the hosts of a run recorded."""

    path: Path
    devices: tuple[TraceDevice, ...]
    threads: tuple[Thread, ...]
    programs: tuple[Plane, ...] = ()  # the compiled ones, by name
    unread: tuple[str, ...] = ()  # planes with events that no table here has


def under_roof(trace: Trace, chip: Chip, *, dtype: str = "bf16") -> Trace:
    """The same trace, every device held to the peak of a chip at a dtype and to its memory."""
    used = chip.matmul_dtype(dtype)
    roof = Peaks(chip.peak_flops(used), chip.hbm_bytes_per_s, f"{chip.title}, {used}")
    devices = tuple(replace(device, roof=roof) for device in trace.devices)
    return replace(trace, devices=devices)


@dataclass(frozen=True, slots=True)
class Segments:
    """Disjoint spans in order, each owned by one of the things that ran."""

    owner: I64
    start: I64
    stop: I64


def turns(owner: I64, start: I64, stop: I64) -> Segments:
    """Every instant given to the one that began last of those that run: an inner op, a callee."""
    order = np.lexsort((-stop, start))
    owner, start, stop = owner[order], start[order], stop[order]
    if (stop[:-1] <= start[1:]).all():
        return Segments(owner, start, stop)
    mine: list[int] = []
    begins: list[int] = []
    ends: list[int] = []
    stack: list[tuple[int, int]] = []
    clock = 0
    later = zip(owner.tolist(), start.tolist(), stop.tolist(), strict=True)
    for who, begin, end in [*later, (-1, int(stop.max()), 0)]:
        while stack and clock < begin:
            ends_at, running = stack[-1]
            if ends_at <= clock:
                stack.pop()
                continue
            until = min(ends_at, begin)
            mine.append(running)
            begins.append(clock)
            ends.append(until)
            clock = until
        clock = max(clock, begin)
        stack.append((end, who))
    columns = (np.array(column, dtype=np.int64) for column in (mine, begins, ends))
    return Segments(*columns)


def cut(found: Segments, at: I64) -> Segments:
    """The same spans, broken at some instants in order."""
    first = np.searchsorted(at, found.start, side="right")
    pieces = np.searchsorted(at, found.stop, side="left") - first + 1
    if (pieces <= 1).all():
        return found
    one = np.repeat(np.arange(len(pieces)), pieces)
    turn = np.arange(len(one)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    place = first[one] + turn
    start = np.where(turn == 0, found.start[one], at[np.maximum(place - 1, 0)])
    stop = np.where(turn == pieces[one] - 1, found.stop[one], at[np.minimum(place, len(at) - 1)])
    return Segments(found.owner[one], start, stop)


def union(start: I64, stop: I64) -> tuple[I64, I64]:
    """The spans merged: disjoint and in order."""
    if not len(start):
        return start, stop
    order = np.argsort(start, kind="stable")
    start, stop = start[order], stop[order]
    reach = np.maximum.accumulate(stop)
    fresh = np.flatnonzero(np.append(True, start[1:] > reach[:-1]))
    last = np.append(fresh[1:], len(start)) - 1
    return start[fresh], reach[last]


def inside(start: I64, stop: I64, cover: tuple[I64, I64]) -> I64:
    """Picoseconds of each span that lie within a cover of disjoint spans."""
    return _covered(stop, cover) - _covered(start, cover)


def _covered(at: I64, cover: tuple[I64, I64]) -> I64:
    """Picoseconds of the cover before each instant."""
    begin, end = cover
    if not len(begin):
        return np.zeros_like(at)
    sums = np.append(0, np.cumsum(end - begin))
    index = np.searchsorted(begin, at, side="right")
    before = np.maximum(index - 1, 0)
    part = np.clip(at - begin[before], 0, end[before] - begin[before])
    return np.where(index > 0, sums[before] + part, 0)


def gaps(cover: tuple[I64, I64], start: int, stop: int) -> tuple[I64, I64]:
    """What a cover of disjoint spans leaves free of a window."""
    near = (cover[1] > start) & (cover[0] < stop)
    begin = np.append(start, np.minimum(cover[1][near], stop))
    end = np.append(np.maximum(cover[0][near], start), stop)
    free = end > begin
    return begin[free], end[free]

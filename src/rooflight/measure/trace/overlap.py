"""Collectives in flight, and how much of that time the device computes meanwhile.

In: a `Trace`. Out: an `Overlap` for every kind. In flight is from the start of a collective to its
end; hidden is where anything computes or moves data meanwhile, exposed is the rest.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rooflight.measure.trace.classify import COLLECTIVES
from rooflight.measure.trace.intervals import F64, SECONDS, Segments, cut, inside, turns, union
from rooflight.measure.trace.record import Timeline, Trace, TraceDevice
from rooflight.measure.trace.wire import I64

Groups = Sequence[Sequence[int]]

ALL = "all"
# Halves of an asynchronous op: they wait, if anything.
_HALVES = re.compile(r"-(start|done|update)(\.\d+)*$")


@dataclass(frozen=True, slots=True)
class Overlap:
    """Seconds per step on one device; kinds may be in flight at once, `all` counts once."""

    kind: str
    in_flight_s: float
    hidden_s: float

    @property
    def exposed_s(self) -> float:
        return self.in_flight_s - self.hidden_s


def overlaps(trace: Trace, *, step: str | None = None) -> tuple[Overlap, ...]:
    """Every kind that flew, and all together first; empty where there is none."""
    totals: dict[str, F64] = {}
    steps = 0
    for device in trace.devices:
        chosen = [s for s in device.steps if step in (None, s.name)]
        windows = np.array([[s.start_ps, s.stop_ps] for s in chosen], np.int64)
        if not chosen:
            continue
        steps += len(chosen)
        waits = np.array([bool(_HALVES.search(op.name)) for op in device.work.ops], dtype=np.bool_)
        cover = spans_of(device.work, (ranks(device.work) == 0) & ~waits[device.work.which])
        for kind in (ALL, *COLLECTIVES):
            seconds = _flown(device, kind, windows, cover)
            if seconds[0]:
                totals[kind] = totals.get(kind, np.zeros(2)) + seconds
    return tuple(
        Overlap(kind, float(flown) / steps, float(hidden) / steps)
        for kind, (flown, hidden) in totals.items()
    )


def _flown(device: TraceDevice, kind: str, windows: I64, cover: tuple[I64, I64]) -> F64:
    """Seconds in flight and hidden within the windows."""
    starts: list[I64] = []
    stops: list[I64] = []
    for line in (device.work, device.flights):
        wanted = [_is(op.op_class, kind) for op in line.ops]
        mine = np.array(wanted, dtype=np.bool_)[line.which] if len(line) else line.which > 0
        starts.append(line.start_ps[mine])
        stops.append(line.stop_ps[mine])
    start, stop = union(np.concatenate(starts), np.concatenate(stops))
    found = cut(Segments(start, start, stop), np.unique(windows))
    at = np.searchsorted(windows[:, 0], found.start, side="right") - 1
    within = (at >= 0) & (found.start < windows[np.maximum(at, 0), 1])
    begin, end = found.start[within], found.stop[within]
    spans = np.array([(end - begin).sum(), inside(begin, end, cover).sum()])
    return spans * SECONDS


def _is(op_class: str, kind: str) -> bool:
    return op_class in COLLECTIVES if kind == ALL else op_class == kind


@dataclass(frozen=True, slots=True)
class BusyTime:
    """Seconds of executions in steps; `step` and `execution` are indices."""

    step: I64
    execution: I64
    seconds: F64


def ranks(work: Timeline) -> I64:
    """0 for what computes or moves, 1 for collectives, 2 for loops and calls, by execution."""
    by_op = [
        1 if op.op_class in COLLECTIVES else 2 if op.op_class == "control" else 0 for op in work.ops
    ]
    return np.array(by_op, dtype=np.int64)[work.which]


def busy(device: TraceDevice) -> BusyTime:
    """The seconds of every execution that are its own."""
    work, rank = device.work, ranks(device.work)
    cuts = np.array([s.start_ps for s in device.steps] + [device.steps[-1].stop_ps], np.int64)
    parts: list[tuple[Segments, I64]] = []
    for level in range(3):
        mine = np.flatnonzero(rank == level)
        found = cut(turns(mine, work.start_ps[mine], work.stop_ps[mine]), cuts)
        above = spans_of(work, rank < level)
        hidden = inside(found.start, found.stop, above)
        parts.append((found, found.stop - found.start - hidden))
    start = np.concatenate([found.start for found, _ in parts])
    step = np.searchsorted(cuts, start, side="right") - 1
    within = (step >= 0) & (step < len(device.steps))
    owner = np.concatenate([found.owner for found, _ in parts])
    own = np.concatenate([own for _, own in parts])
    return BusyTime(step[within], owner[within], own[within].astype(np.float64) * SECONDS)


def spans_of(work: Timeline, mine: npt.NDArray[np.bool_]) -> tuple[I64, I64]:
    """The union of some executions."""
    return union(work.start_ps[mine], work.stop_ps[mine])


def waits_for_last(trace: Trace, groups: Mapping[str, Groups], *, first: int = 0) -> float:
    """Seconds per step on one device; `first` is the place of the trace's first device in the mesh.

    `groups` are those of every collective by its name. A wait ends with the collective at the
    latest, because an end that the trace does not have is taken from what came next.
    """
    waited, steps = 0.0, sum(len(device.steps) for device in trace.devices)
    for name, members in groups.items():
        runs = [_runs(trace, at, name) for at in range(len(trace.devices))]
        for group in members:
            here = [place - first for place in group]
            if all(0 <= place < len(runs) for place in here):
                waited += _waited([runs[place] for place in here])
    return waited / steps if steps else 0.0


def _runs(trace: Trace, at: int, name: str) -> tuple[I64, I64]:
    """When each run of a collective began and ended on a device, within its steps."""
    device = trace.devices[at]
    work = device.work
    named = np.array([op.name == name for op in work.ops], dtype=np.bool_)
    mine = named[work.which] if len(work) else np.zeros(0, dtype=np.bool_)
    if device.steps:
        mine &= (work.start_ps >= device.steps[0].start_ps) & (
            work.start_ps < device.steps[-1].stop_ps
        )
    order = np.argsort(work.start_ps[mine], kind="stable")
    return work.start_ps[mine][order], work.stop_ps[mine][order]


def _waited(runs: Sequence[tuple[I64, I64]]) -> float:
    count = len(runs[0][0])
    if len(runs) < 2 or any(len(start) != count for start, _ in runs):
        return 0.0  # a run that only some devices recorded cannot be told from another
    starts = np.array([start for start, _ in runs])
    stops = np.array([stop for _, stop in runs])
    last = starts.max(axis=0)
    return float(np.maximum(np.minimum(stops, last) - starts, 0).sum()) * SECONDS

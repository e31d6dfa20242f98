"""Collectives and copies in flight, and how much of that time the device computes meanwhile.

In: a `Trace`. Out: an `Overlap` for every kind. In flight is from the start of a collective, or of
an asynchronous copy, to its end; hidden is where anything computes or moves data meanwhile, exposed
is the rest.

Whose time it is: every instant of a device belongs to one execution of an op, or is idle. Of ops
that run at once, the one that computes counts before a collective (which is hidden then), and
either before the loop or call around them; among equals the one that began last.

What the host does while a device waits. A gap is a part of a step in which nothing runs on a
device; it is put down to the innermost event of any thread that covers half of it or more.

How long devices wait in a collective for the last one of their group to come to it. The k-th run of
a collective is the same one on every device; a device that begins it waits until the last device of
its group has begun it too. Groups with devices of another trace are left out.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rooflight.measure.trace.classify import COLLECTIVES
from rooflight.measure.trace.record import (
    F64,
    SECONDS,
    Segments,
    Thread,
    Timeline,
    Trace,
    TraceDevice,
    cut,
    gaps,
    inside,
    turns,
    union,
)
from rooflight.measure.trace.wire import I64

SHORT = "short gaps, not looked at"
NOTHING = "nothing that was recorded"
_NAMED = 64  # gaps that are looked at, the longest of all devices

Groups = Sequence[Sequence[int]]

ALL = "all"  # collectives; what is copied meanwhile is a row of its own
COPY = "copy"
# Halves of an asynchronous op: they wait, if anything.
HALVES = re.compile(r"-(start|done|update)(\.\d+)*$")


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
        cover = _computing(device)
        for kind in (ALL, *COLLECTIVES, COPY):
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
    for line in (device.flights, *([device.work] if kind != COPY else [])):
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


@dataclass(frozen=True, slots=True)
class AsyncOp:
    """What flew under one name, per step on one device; those in flight at once count each."""

    name: str
    kind: str
    count: float
    in_flight_s: float
    hidden_s: float

    @property
    def exposed_s(self) -> float:
        return self.in_flight_s - self.hidden_s


def async_ops(trace: Trace, *, step: str | None = None) -> tuple[AsyncOp, ...]:
    """Every asynchronous op, the one that is exposed the longest first."""
    totals: dict[tuple[str, str], F64] = {}
    steps = 0
    for device in trace.devices:
        chosen = [s for s in device.steps if step in (None, s.name)]
        steps += len(chosen)
        flown, cover = device.flights, _computing(device)
        hidden = inside(flown.start_ps, flown.stop_ps, cover)
        begins = np.array([s.start_ps for s in chosen], np.int64)
        ends = np.array([-1, *(s.stop_ps for s in chosen)], np.int64)
        at = np.searchsorted(begins, flown.start_ps, side="right")
        mine = np.flatnonzero(flown.start_ps < ends[at])
        columns = np.stack([np.ones(len(flown)), flown.stop_ps - flown.start_ps, hidden])
        for which in np.unique(flown.which[mine]).tolist():
            op = flown.ops[which]
            seconds = columns[:, mine[flown.which[mine] == which]].sum(axis=1)
            key = op.name, op.op_class
            totals[key] = totals.get(key, np.zeros(3)) + seconds
    rows = [
        AsyncOp(*key, n / steps, flown * SECONDS / steps, hidden * SECONDS / steps)
        for key, (n, flown, hidden) in ((k, v.tolist()) for k, v in totals.items())
    ]
    return tuple(sorted(rows, key=lambda row: -row.exposed_s))


def _computing(device: TraceDevice) -> tuple[I64, I64]:
    """Where anything computes or moves data; a half of an asynchronous op only waits."""
    waits = np.array([bool(HALVES.search(op.name)) for op in device.work.ops], dtype=np.bool_)
    return spans_of(device.work, (ranks(device.work) == 0) & ~waits[device.work.which])


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


@dataclass(frozen=True, slots=True)
class HostGap:
    """Seconds per step on one device, and what the host did meanwhile."""

    doing: str
    seconds: float
    count: float


def host_gaps(trace: Trace, *, step: str | None = None) -> tuple[HostGap, ...]:
    """What devices waited for, summed by what the host did."""
    found: list[tuple[int, int, str]] = []
    short, count, steps = 0.0, 0, 0
    for device in trace.devices:
        begin, end = _free(device, step)
        steps += sum(step in (None, one.name) for one in device.steps)
        longest = np.argsort(begin - end, kind="stable")[:_NAMED]
        spans = zip(begin[longest].tolist(), end[longest].tolist(), strict=True)
        found += [(start, stop, device.host) for start, stop in spans]
        short += float((end - begin).sum()) * SECONDS
        count += len(begin)
    named = sorted(found, key=lambda gap: gap[0] - gap[1])[:_NAMED]
    least = min((stop - start for start, stop, _ in named), default=0)
    threads = [_Covering.of(thread, least) for thread in trace.threads]
    totals: dict[str, list[float]] = {}
    for start, stop, host in named:
        own = [one for one in threads if one.thread.host == host]
        _add(totals, _doing(own, start, stop), (stop - start) * SECONDS, 1)
        short -= (stop - start) * SECONDS
    if count > len(named):
        _add(totals, SHORT, max(short, 0.0), count - len(named))
    rows = [HostGap(doing, s / steps, count / steps) for doing, (s, count) in totals.items()]
    return tuple(sorted(rows, key=lambda row: -row.seconds))


def _add(totals: dict[str, list[float]], doing: str, seconds: float, count: int) -> None:
    row = totals.setdefault(doing, [0.0, 0.0])
    row[0] += seconds
    row[1] += count


def _free(device: TraceDevice, step: str | None) -> tuple[I64, I64]:
    """The spans of a device's steps in which nothing runs."""
    work, steps = device.work, device.steps
    cover = union(work.start_ps, work.stop_ps)
    cuts = np.array([s.start_ps for s in steps] + [steps[-1].stop_ps], np.int64)
    free = gaps(cover, int(cuts[0]), int(cuts[-1]))
    found = cut(Segments(free[0], *free), cuts)
    at = np.searchsorted(cuts, found.start, side="right") - 1
    chosen = np.array([step in (None, s.name) for s in steps], dtype=np.bool_)[at]
    return found.start[chosen], found.stop[chosen]


@dataclass(frozen=True, slots=True)
class _Covering:
    """The events of a thread that are long enough to cover half of a gap."""

    thread: Thread
    kind: I64
    start: I64
    stop: I64

    @classmethod
    def of(cls, thread: Thread, least_gap: int) -> "_Covering":
        events = thread.events
        long = events.duration_ps * 2 >= max(least_gap, 1)
        stop = events.start_ps + events.duration_ps
        return cls(thread, events.kind[long], events.start_ps[long], stop[long])


def _doing(threads: Sequence[_Covering], start: int, stop: int) -> str:
    """The shortest event that covers half of a gap."""
    best: tuple[int, str] | None = None
    for one in threads:
        shared = np.minimum(one.stop, stop) - np.maximum(one.start, start)
        covers = np.flatnonzero(shared * 2 >= stop - start)
        if not len(covers):
            continue
        lengths = one.stop[covers] - one.start[covers]
        at = int(covers[np.argmin(lengths)])
        if best is None or int(lengths.min()) < best[0]:
            best = int(lengths.min()), one.thread.event_name(int(one.kind[at]))
    return best[1] if best else NOTHING

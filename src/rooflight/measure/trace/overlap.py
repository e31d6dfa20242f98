"""Collectives in flight, and how much of that time the device computes meanwhile.

In: a `Trace`. Out: an `Overlap` for every kind. In flight is from the start of a collective to its
end; hidden is where anything computes or moves data meanwhile, exposed is the rest.
"""

import re
from dataclasses import dataclass

import numpy as np

from rooflight.measure.trace.busy import ranks, spans_of
from rooflight.measure.trace.classify import COLLECTIVES
from rooflight.measure.trace.intervals import F64, SECONDS, Segments, cut, inside, union
from rooflight.measure.trace.record import Timeline, Trace, TraceDevice
from rooflight.measure.trace.wire import I64

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
        cover = _computing(device.work)
        for kind in (ALL, *COLLECTIVES):
            seconds = _flown(device, kind, windows, cover)
            if seconds[0]:
                totals[kind] = totals.get(kind, np.zeros(2)) + seconds
    return tuple(
        Overlap(kind, float(flown) / steps, float(hidden) / steps)
        for kind, (flown, hidden) in totals.items()
    )


def _computing(work: Timeline) -> tuple[I64, I64]:
    waits = np.array([bool(_HALVES.search(op.name)) for op in work.ops], dtype=np.bool_)
    return spans_of(work, (ranks(work) == 0) & ~waits[work.which])


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

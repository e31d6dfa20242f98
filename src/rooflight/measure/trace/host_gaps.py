"""What the host does while a device waits.

In: a `Trace`. Out: `HostGap`s, the longest first. A gap is a part of a step in which nothing runs
on a device; it is put down to the innermost event of any thread that covers half of it or more.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rooflight.measure.trace.intervals import SECONDS, Segments, cut, gaps, union
from rooflight.measure.trace.record import Thread, Trace, TraceDevice
from rooflight.measure.trace.wire import I64

SHORT = "short gaps, not looked at"
NOTHING = "nothing that was recorded"
_NAMED = 64  # gaps that are looked at, the longest of all devices


@dataclass(frozen=True, slots=True)
class HostGap:
    """Seconds per step on one device, and what the host did meanwhile."""

    doing: str
    seconds: float
    count: float


def host_gaps(trace: Trace, *, step: str | None = None) -> tuple[HostGap, ...]:
    """What devices waited for, summed by what the host did."""
    found: list[tuple[int, int]] = []
    short, count, steps = 0.0, 0, 0
    for device in trace.devices:
        begin, end = _free(device, step)
        steps += sum(step in (None, one.name) for one in device.steps)
        longest = np.argsort(begin - end, kind="stable")[:_NAMED]
        found += zip(begin[longest].tolist(), end[longest].tolist(), strict=True)
        short += float((end - begin).sum()) * SECONDS
        count += len(begin)
    named = sorted(found, key=lambda gap: gap[0] - gap[1])[:_NAMED]
    least = min((stop - start for start, stop in named), default=0)
    threads = [_Covering.of(thread, least) for thread in trace.threads]
    totals: dict[str, list[float]] = {}
    for start, stop in named:
        _add(totals, _doing(threads, start, stop), (stop - start) * SECONDS, 1)
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

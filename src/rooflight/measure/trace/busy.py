"""Whose time it is: every instant of a device belongs to one execution of an op, or is idle.

In: a `TraceDevice`. Out: seconds by step and execution. Of ops that run at once, the one that
computes counts before a collective (which is hidden then), and either before the loop or call
around them; among equals the one that began last.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rooflight.measure.trace.classify import COLLECTIVES
from rooflight.measure.trace.intervals import F64, SECONDS, Segments, cut, inside, turns, union
from rooflight.measure.trace.record import Timeline, TraceDevice
from rooflight.measure.trace.wire import I64


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

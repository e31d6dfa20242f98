"""Where steps begin and end.

In: instants at which something starts anew. Out: `TraceStep`s, each until the next begins, so that
what a device waits between two steps belongs to the first of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rooflight.measure.trace.record import Timeline, TraceStep
from rooflight.measure.trace.wire import I64


@dataclass(frozen=True, slots=True)
class StepMark:
    """A step as the host's program marked it."""

    start_ps: int
    name: str


def steps_from(starts: I64, work: Timeline, names: Sequence[str]) -> tuple[TraceStep, ...]:
    """Steps that begin at some instants; without any, all of the trace is one.

    `names` count if there is one for each; else steps are numbered from 0.
    """
    end = int(work.stop_ps.max())
    if not len(starts):
        return (TraceStep("all", int(work.start_ps.min()), end),)
    order = np.argsort(starts, kind="stable").tolist()
    shown = [str(at) for at in range(len(order))]
    if len(names) == len(starts):
        shown = [names[int(i)] for i in order]
    begins = [int(starts[i]) for i in order]
    stops = [*begins[1:], end]
    steps = zip(shown, begins, stops, strict=True)
    return tuple(TraceStep(name, begin, stop) for name, begin, stop in steps if stop > begin)

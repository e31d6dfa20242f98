"""How long devices wait in a collective for the last one of their group to come to it.

In: a `Trace`, and who talks to whom in a collective. Out: seconds per step on one device. The k-th
run of a collective is the same one on every device; a device that begins it waits until the last
device of its group has begun it too. Groups with devices of another trace are left out.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from rooflight.measure.trace.intervals import SECONDS
from rooflight.measure.trace.record import Trace
from rooflight.measure.trace.wire import I64

Groups = Sequence[Sequence[int]]


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

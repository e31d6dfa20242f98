"""The devices of a CPU: their ops run on any thread of the host and name their device and run.

In: the host's plane. Out: a `Device` for every ordinal. An op that is handed to a pool is recorded
twice: while it is handed over, and as `end: NAME` after it is done, under the same number.
"""

from collections.abc import Sequence

import numpy as np

from rooflight.profile.events import MISSING, Events
from rooflight.profile.named_ops import Programs, named_ops
from rooflight.profile.step_windows import Mark, steps_from
from rooflight.profile.trace import Device, Roof, Step, Timeline
from rooflight.profile.wire import I64
from rooflight.profile.xspace import Plane

_MOST_DEVICES = 1024
_NEVER = np.iinfo(np.int64).max


def cpu_devices(plane: Plane, programs: Programs, marks: Sequence[Mark]) -> list[Device]:
    """Every device that ran an op, with its ops in the order of the threads."""
    lines = [line.events for line in plane.lines]
    found = [events.pick(events.has("hlo_op")) for events in lines]
    ran = named_ops(plane, found, programs)
    ordinal, run, number = (
        np.concatenate([events.stat(name) for events in found])
        for name in ("device_ordinal", "run_id", "_p")
    )
    said = _said_to_end(plane, lines, number)
    names = [mark.name for mark in marks]
    devices: list[Device] = []
    for one in np.unique(ordinal)[:_MOST_DEVICES].tolist():
        mine = np.flatnonzero(ordinal == one)
        which, start = ran.work.which[mine], ran.work.start_ps[mine]
        begun = Timeline(ran.work.ops, which, start, ran.work.stop_ps[mine])
        work = Timeline(ran.work.ops, which, start, _done(begun, said[mine], ran.near))
        steps = _steps(work, ran.module[mine], run[mine], names)
        title = "CPU" if one == MISSING else f"CPU:{one}"
        roof = Roof(None, None, "unknown")
        devices.append(Device(title, "", work, Timeline.empty(), steps, roof))
    return devices


def _said_to_end(plane: Plane, lines: Sequence[Events], number: I64) -> I64:
    """When the event `end: NAME` with the number of each op began; 0 if there is none."""
    ended = [events.pick(events.has("_c")) for events in lines]
    kind = np.concatenate([events.kind for events in ended])
    named = [k for k in np.unique(kind).tolist() if plane.kind(k).name.startswith("end: ")]
    mine = np.isin(kind, named)
    ids = np.concatenate([events.stat("_c") for events in ended])[mine]
    begun = np.concatenate([events.start_ps for events in ended])[mine]
    if not len(ids):
        return np.zeros_like(number)
    order = np.argsort(ids, kind="stable")
    at = np.minimum(np.searchsorted(ids[order], number), len(ids) - 1)
    known = (ids[order][at] == number) & (number != MISSING)
    return np.where(known, begun[order][at], 0)


def _done(begun: Timeline, said: I64, near: Sequence[frozenset[int]]) -> I64:
    """When each op was done.

    The thread that ends an op runs the next ones before it says so. But an op is done before any
    op starts that reads its result, and before anything it read is made again; loops and calls,
    whose results are tuples, last until they say so.
    """
    order = np.argsort(begun.which, kind="stable")
    ops, first = np.unique(begun.which[order], return_index=True)
    runs = {int(op): run for op, run in zip(ops, np.split(order, first[1:]), strict=True)}
    starts = {op: np.append(np.sort(begun.start_ps[run]), _NEVER) for op, run in runs.items()}
    done = said.copy()
    for op, run in runs.items():
        if begun.ops[op].op_class == "control":
            continue
        for other in near[op] & starts.keys():
            after = np.searchsorted(starts[other], begun.start_ps[run], side="right")
            done[run] = np.minimum(done[run], starts[other][after])
    return np.maximum(begun.stop_ps, done)


def _steps(work: Timeline, module: I64, run: I64, names: Sequence[str]) -> tuple[Step, ...]:
    """A step is a run of the program that took longest."""
    busy = (work.stop_ps - work.start_ps).astype(np.float64)
    main = int(np.argmax(np.bincount(module, weights=busy)))
    mine = (module == main) & (run != MISSING)
    runs, which = np.unique(run[mine], return_inverse=True)
    starts = np.full(len(runs), _NEVER)
    np.minimum.at(starts, which, work.start_ps[mine])
    return steps_from(starts, work, names)

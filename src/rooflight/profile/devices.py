"""Devices and threads out of planes: which lines hold ops, what the ops are, where steps begin.

In: the planes of a trace. Out: `Device`s and the host's `Thread`s. On a TPU the ops are the events
of the line `XLA Ops`, and their metadata says what they are; on a GPU they are those of its
streams; those of a CPU's devices are spread over the threads of the host (`cpu_devices`).
"""

import re
from collections.abc import Sequence

import numpy as np

from rooflight.profile.classify import layer_of, op_class
from rooflight.profile.cpu_devices import cpu_devices
from rooflight.profile.events import Events
from rooflight.profile.named_ops import Programs, named_ops
from rooflight.profile.step_windows import Mark, steps_from
from rooflight.profile.trace import Device, Op, Roof, Step, Thread, Timeline
from rooflight.profile.wire import I64, Malformed, fields
from rooflight.profile.xspace import Kind, Line, Plane

_DONE = re.compile(r"-done\(.*%([\w.-]+)\)")
_DEVICE = re.compile(r"/device:(TPU|GPU):\d+")
_OPS, _ASYNC, _STEPS, _MODULES = "XLA Ops", "Async XLA Ops", "Steps", "XLA Modules"
_HBM = 1  # the memory space of a TPU's breakdown of accesses
WANTED = ("hlo_op", "hlo_module", "program_id", "run_id", "device_ordinal", "step_num", "_p", "_c")
WITHOUT_STATS = (_OPS,)  # they repeat the times; the rest is said once for each op


def read_devices(planes: Sequence[Plane]) -> tuple[tuple[Device, ...], tuple[Thread, ...]]:
    """The devices of a trace, and the threads that are none."""
    programs = Programs(planes)
    hosts = [plane for plane in planes if plane.name.startswith("/host:CPU")]
    marks = _marks(hosts)
    devices: list[Device] = []
    for plane in planes:
        if _DEVICE.fullmatch(plane.name):
            devices += _accelerator(plane, programs, marks)
    threads: list[Thread] = []
    for plane in hosts:
        ran = [line.events.has("hlo_op").any() for line in plane.lines]
        devices += cpu_devices(plane, programs, marks) if any(ran) and not devices else []
        threads += [
            Thread(line.name, line.events, plane)
            for line, is_device in zip(plane.lines, ran, strict=True)
            if len(line.events) and not is_device
        ]
    return tuple(devices), tuple(threads)


def _marks(hosts: Sequence[Plane]) -> list[Mark]:
    """The steps that StepTraceAnnotation marked, in the order of their start."""
    found: list[Mark] = []
    for plane in hosts:
        for line in plane.lines:
            own = line.events.pick(line.events.has("step_num"))
            numbers = map(str, own.stat("step_num").tolist())
            found += map(Mark, own.start_ps.tolist(), numbers)
    return sorted(found, key=lambda mark: mark.start_ps)


def _accelerator(plane: Plane, programs: Programs, marks: Sequence[Mark]) -> list[Device]:
    """A TPU by its line of ops; else every stream of a GPU."""
    by_name = {line.name: line for line in plane.lines}
    if _OPS in by_name:
        work = _timeline(plane, by_name[_OPS].events)
    else:
        streams = [line.events for line in plane.lines if line.name.startswith("Stream")]
        work = named_ops(plane, streams, programs).work
    if not len(work.which):
        return []
    if _ASYNC in by_name:
        flights = _timeline(plane, by_name[_ASYNC].events)
    else:
        flights = _paired(plane, by_name[_OPS].events) if _OPS in by_name else Timeline.empty()
    steps = _device_steps(plane, by_name, work, marks)
    kind = plane.stats.get("device_type_string", "")
    return [Device(plane.name, str(kind), work, flights, steps, _roof(plane))]


def _roof(plane: Plane) -> Roof:
    def rate(stat: str, unit: float) -> float | None:
        value = plane.stats.get(stat)
        return value * unit if isinstance(value, int | float) and 0 < value < 1e12 else None

    flops = rate("peak_teraflops_per_second", 1e12)
    hbm = rate("peak_hbm_bw_gigabytes_per_second", 1e9)
    return Roof(flops, hbm, "the trace" if flops or hbm else "unknown")


def _timeline(plane: Plane, events: Events) -> Timeline:
    """Events whose metadata says everything about their op."""
    kinds, which = np.unique(events.kind, return_inverse=True)
    ops = tuple(_op_of(plane.kind(number)) for number in kinds.tolist())
    return Timeline(ops, which, events.start_ps, events.start_ps + events.duration_ps)


def _paired(plane: Plane, events: Events) -> Timeline:
    """Flights of a trace without a line of them: from each start to the done that names it."""
    kinds = {number: plane.kind(number) for number in np.unique(events.kind).tolist()}
    starts = {_op_name(kind): number for number, kind in kinds.items()}
    ops: list[Op] = []
    parts: list[tuple[I64, I64]] = []
    for number, kind in kinds.items():
        operand = _DONE.search(kind.name)
        if operand is None or operand[1] not in starts:
            continue
        begin = np.sort(events.start_ps[events.kind == starts[operand[1]]])
        done = events.kind == number
        end = np.sort(events.start_ps[done] + events.duration_ps[done])
        if len(begin) == len(end):  # a trace that begins in the middle has a done too many
            ops.append(_op_of(kinds[starts[operand[1]]]))
            parts.append((begin, end))
    if not ops:
        return Timeline.empty()
    which = np.repeat(np.arange(len(ops)), [len(begin) for begin, _ in parts])
    start, stop = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    return Timeline(tuple(ops), which, start, np.maximum(start, stop))


def _op_name(kind: Kind) -> str:
    """The name in `%NAME = SHAPE opcode(...)`."""
    return kind.name.partition(" = ")[0].lstrip("%") or kind.display_name


def _op_of(kind: Kind) -> Op:
    stats = kind.stats
    name = _op_name(kind)
    category = str(stats.get("hlo_category", name))
    flops = stats.get("flops")
    if category.startswith("custom-call") and not flops:
        flops = None  # a kernel that was given no cost says 0
    return Op(
        name=name,
        op_class=op_class(category, name, scope=str(stats.get("tf_op", "")), holds=frozenset()),
        layer=layer_of(str(stats.get("tf_op", ""))),
        line=str(stats.get("source", "")),
        flops=float(flops) if isinstance(flops, int | float) else None,
        nbytes=_hbm_bytes(stats.get("memory_access_breakdown"), stats.get("bytes_accessed")),
    )


def _hbm_bytes(breakdown: object, total: object) -> int | None:
    """Bytes through the main memory: entries of (operation 1, memory space 2, bytes 3)."""
    if isinstance(breakdown, bytes) and breakdown:
        try:
            entries = [
                {f.number: f.value for f in fields(breakdown, e.start, e.stop)}
                for e in fields(breakdown, 0, len(breakdown))
            ]
        except Malformed:
            return None
        return sum(e.get(3, 0) for e in entries if e.get(2) == _HBM)
    return total if isinstance(total, int) else None


def _device_steps(
    plane: Plane, lines: dict[str, Line], work: Timeline, marks: Sequence[Mark]
) -> tuple[Step, ...]:
    """By the line of steps; else by the runs of the program that took longest; else by the host."""
    if _STEPS in lines and len(lines[_STEPS].events):
        events = lines[_STEPS].events
        names = [plane.kind(number).name for number in events.kind.tolist()]
        return steps_from(events.start_ps, work, names)
    names = [mark.name for mark in marks]
    if _MODULES in lines and len(lines[_MODULES].events):
        events = lines[_MODULES].events
        kinds, which = np.unique(events.kind, return_inverse=True)
        main = np.argmax(np.bincount(which, weights=events.duration_ps, minlength=len(kinds)))
        return steps_from(events.start_ps[which == main], work, names)
    return steps_from(np.array([mark.start_ps for mark in marks], np.int64), work, names)

"""From a path to a `Trace`: find the file, map it, read it; whatever is wrong is one sentence.

Devices and threads out of planes: which lines hold ops, what the ops are, where steps begin. On a
TPU the ops are the events of the line `XLA Ops`, and their metadata says what they are; on a GPU
they are those of its streams; those of a CPU's devices are spread over the threads of the host
(`cpu_devices`).

Where steps begin and end.
"""

import mmap
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from rooflight.errors import ParseError, UsageError
from rooflight.measure.trace.classify import layer_of, op_class
from rooflight.measure.trace.events import FARTHEST_NS, MISSING, PS, Events
from rooflight.measure.trace.named_ops import Programs, named_ops
from rooflight.measure.trace.record import (
    Peaks,
    Thread,
    Timeline,
    Trace,
    TraceDevice,
    TraceOp,
    TraceStep,
)
from rooflight.measure.trace.wire import I64, Malformed, fields
from rooflight.measure.trace.xspace import EventMetadata, Plane, XLine, read_planes

_DONE = re.compile(r"-done\(.*%([\w.-]+)\)")
_PROCESS = re.compile(r"process-\d+")  # of a run of `train`, each with a folder of its own
_DEVICE = re.compile(r"/device:(TPU|GPU):\d+")
_OPS, _ASYNC, _STEPS, _MODULES = "XLA Ops", "Async XLA Ops", "Steps", "XLA Modules"
_HBM = 1  # the memory space of a TPU's breakdown of accesses
_CLOCK = ("device_offset_ps", "device_duration_ps")  # before it was brought to the host's clock
WANTED = (
    *("hlo_op", "hlo_module", "program_id", "run_id", "device_ordinal", "step_num", "_p", "_c"),
    *_CLOCK,
    *("bytes_allocated", "bytes_reserved", "bytes_available", "index_on_host", "allocator_name"),
)

EXAMPLE = Path(__file__).with_name("example.xplane.pb")


@dataclass(frozen=True, slots=True)
class StepMark:
    """A step as the host's program marked it."""

    start_ps: int
    name: str


def find_traces(path: Path) -> list[Path]:
    """The file itself, or the newest ones that a folder holds: those of all hosts of a run."""
    if not path.is_dir():
        return [path]
    found = sorted(path.rglob("*.xplane.pb"))
    if not found:
        raise UsageError(
            f"{path} holds no .xplane.pb", hint="give the folder that jax.profiler.trace wrote to"
        )
    roots = {p.parents[3] if len(p.parents) > 3 else path for p in found}
    if not all(_PROCESS.fullmatch(root.name) for root in roots):  # else of one run
        roots = {path}
    files: list[Path] = []
    for root in sorted(roots, key=lambda root: (len(root.name), root)):
        mine = [p for p in found if p.is_relative_to(root)]
        newest = max(mine, key=lambda p: (p.stat().st_mtime, p.name)).parent
        files += [p for p in mine if p.parent == newest]
    return files


def read_trace(path: Path) -> Trace:
    """Reads a trace; `path` is an .xplane.pb, or a folder that holds one of each host."""
    files = find_traces(path)
    traces = [_read_host(file) for file in files]
    if len(files) == 1:
        return traces[0]
    stems = [file.name.removesuffix(".xplane.pb") for file in files]
    names = stems if len(set(stems)) == len(files) else [file.parents[3].name for file in files]
    hosts = list(zip(names, traces, strict=True))
    return Trace(
        path,
        tuple(replace(d, name=f"{h} {d.name}", host=h) for h, t in hosts for d in t.devices),
        tuple(replace(r, name=f"{h} {r.name}", host=h) for h, t in hosts for r in t.threads),
        tuple(plane for trace in traces for plane in trace.programs),
        tuple(dict.fromkeys(name for trace in traces for name in trace.unread)),
    )


def _read_host(path: Path) -> Trace:
    """The trace of one host."""
    try:
        planes = planes_of(path)
        devices, threads = read_devices(planes)
    except Malformed as error:
        raise ParseError(
            f"{path} is not a whole trace: {error}",
            hint="give the .xplane.pb that jax.profiler wrote, after stop_trace returned",
        ) from None
    if not devices:
        held = ", ".join(repr(plane.name[:40]) for plane in planes[:6]) or "nothing"
        raise UsageError(
            f"{path} has no ops of a device; it holds {held}",
            hint="trace while a jitted function runs, and wait for its result inside",
        )
    programs = tuple(plane for plane in planes if plane.name == "/host:metadata")
    return Trace(path, devices, threads, programs, tuple(_unread(planes)))


def _unread(planes: Sequence[Plane]) -> Iterator[str]:
    """Planes with events that are read for no table: SparseCores, counters, links."""
    for plane in planes:
        known = _DEVICE.fullmatch(plane.name) or plane.name.startswith("/host:CPU")
        if not known and any(len(line.events) for line in plane.lines):
            yield plane.name


def planes_of(path: Path) -> Sequence[Plane]:
    """The file is mapped, not read: only the pages that are looked at take memory."""
    try:
        with path.open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"cannot read {str(path)!r}: {error}", hint="give an .xplane.pb or its folder"
        ) from None
    raw = np.frombuffer(data, dtype=np.uint8)
    return read_planes(data, raw, wanted=WANTED)


def read_devices(planes: Sequence[Plane]) -> tuple[tuple[TraceDevice, ...], tuple[Thread, ...]]:
    """The devices of a trace, and the threads that are none."""
    programs = Programs(planes)
    hosts = [plane for plane in planes if plane.name.startswith("/host:CPU")]
    marks = _marks(hosts)
    devices: list[TraceDevice] = []
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


def _marks(hosts: Sequence[Plane]) -> list[StepMark]:
    """The steps that StepTraceAnnotation marked, in the order of their start."""
    found: list[StepMark] = []
    for plane in hosts:
        for line in plane.lines:
            own = line.events.pick(line.events.has("step_num"))
            numbers = map(str, own.stat("step_num").tolist())
            found += map(StepMark, own.start_ps.tolist(), numbers)
    return sorted(found, key=lambda mark: mark.start_ps)


def _accelerator(plane: Plane, programs: Programs, marks: Sequence[StepMark]) -> list[TraceDevice]:
    """A TPU by its line of ops; else every stream of a GPU."""
    by_name = _on_its_clock({line.name: line for line in plane.lines})
    if _OPS in by_name:
        work = _timeline(plane, by_name[_OPS].events)
    else:
        streams = [line.events for line in plane.lines if line.name.startswith("Stream")]
        work = named_ops(plane, streams, programs).work
    if not len(work.which):
        return []
    if _ASYNC in by_name and len(by_name[_ASYNC].events):  # only the first core of a host's has it
        flights = _timeline(plane, by_name[_ASYNC].events)
    else:
        flights = _paired(plane, by_name[_OPS].events) if _OPS in by_name else Timeline.empty()
    steps = _device_steps(plane, by_name, work, marks)
    kind = plane.stats.get("device_type_string", "")
    return [TraceDevice(plane.name, str(kind), work, flights, steps, _roof(plane))] if steps else []


def _on_its_clock(lines: dict[str, XLine]) -> dict[str, XLine]:
    """Ops as the device counted them, where it says so; other lines moved as the ops were."""
    if _OPS not in lines or not len(lines[_OPS].events):
        return lines
    ops = lines[_OPS].events
    start, length = (ops.stat(name).copy() for name in _CLOCK)
    ends = min(start.min(), length.min()), max(start.max(), length.max())
    if ends[0] < 0 or ends[1] > FARTHEST_NS * PS:  # one that an event lacks is MISSING
        return lines
    start += int(np.median(ops.start_ps - start))  # beside the host's threads
    order = np.argsort(ops.start_ps, kind="stable")
    known, shift = ops.start_ps[order], (start - ops.start_ps)[order]

    def moved(events: Events) -> Events:
        begin, end = (
            at + np.interp(at, known, shift).astype(np.int64)
            for at in (events.start_ps, events.start_ps + events.duration_ps)
        )
        return replace(events, start_ps=begin, duration_ps=np.maximum(end - begin, 0))

    found = {name: XLine(name, moved(line.events)) for name, line in lines.items()}
    return found | {_OPS: XLine(_OPS, replace(ops, start_ps=start, duration_ps=length))}


def _roof(plane: Plane) -> Peaks:
    def rate(stat: str, unit: float) -> float | None:
        value = plane.stats.get(stat)
        return value * unit if isinstance(value, int | float) and 0 < value < 1e12 else None

    flops = rate("peak_teraflops_per_second", 1e12)
    hbm = rate("peak_hbm_bw_gigabytes_per_second", 1e9)
    return Peaks(flops, hbm, "the trace" if flops or hbm else "unknown")


def _timeline(plane: Plane, events: Events) -> Timeline:
    """Events whose metadata says everything about their op."""
    kinds, which = np.unique(events.kind, return_inverse=True)
    ops = tuple(_op_of(plane.kind(number)) for number in kinds.tolist())
    return Timeline(ops, which, events.start_ps, events.start_ps + events.duration_ps)


def _paired(plane: Plane, events: Events) -> Timeline:
    """Flights of a trace without a line of them: from each start to the done that names it."""
    kinds = {number: plane.kind(number) for number in np.unique(events.kind).tolist()}
    starts = {_op_name(kind): number for number, kind in kinds.items()}
    ops: list[TraceOp] = []
    parts: list[tuple[I64, I64]] = []
    for number, kind in kinds.items():
        operand = _DONE.search(kind.name)
        if operand is None or operand[1] not in starts:
            continue
        begin = np.sort(events.start_ps[events.kind == starts[operand[1]]])
        done = events.kind == number
        end = np.sort(events.start_ps[done] + events.duration_ps[done])
        end = end[np.searchsorted(end, begin[0]) :]  # a trace may begin and end in mid flight
        begin = begin[: len(end)]
        if len(begin) == len(end):
            ops.append(_op_of(kinds[starts[operand[1]]]))
            parts.append((begin, end))
    if not ops:
        return Timeline.empty()
    which = np.repeat(np.arange(len(ops)), [len(begin) for begin, _ in parts])
    start, stop = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    return Timeline(tuple(ops), which, start, np.maximum(start, stop))


def _op_name(kind: EventMetadata) -> str:
    """The name in `%NAME = SHAPE opcode(...)`."""
    return kind.name.partition(" = ")[0].lstrip("%") or kind.display_name


def _op_of(kind: EventMetadata) -> TraceOp:
    stats = kind.stats
    name = _op_name(kind)
    category = str(stats.get("hlo_category", name))
    flops = stats.get("flops")
    if category.startswith("custom-call") and not flops:
        flops = None  # a kernel that was given no cost says 0
    return TraceOp(
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
    plane: Plane, lines: dict[str, XLine], work: Timeline, marks: Sequence[StepMark]
) -> tuple[TraceStep, ...]:
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


# The devices of a CPU: their ops run on any thread of the host and name their device and run.

_MOST_DEVICES = 1024
_NEVER = np.iinfo(np.int64).max


def cpu_devices(plane: Plane, programs: Programs, marks: Sequence[StepMark]) -> list[TraceDevice]:
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
    devices: list[TraceDevice] = []
    for one in np.unique(ordinal)[:_MOST_DEVICES].tolist():
        mine = np.flatnonzero(ordinal == one)
        which, start = ran.work.which[mine], ran.work.start_ps[mine]
        begun = Timeline(ran.work.ops, which, start, ran.work.stop_ps[mine])
        work = Timeline(ran.work.ops, which, start, _done(begun, said[mine], ran.near))
        steps = _steps(work, ran.module[mine], run[mine], names)
        title = "CPU" if one == MISSING else f"CPU:{one}"
        roof = Peaks(None, None, "unknown")
        devices += [TraceDevice(title, "", work, Timeline.empty(), steps, roof)] if steps else []
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


def _steps(work: Timeline, module: I64, run: I64, names: Sequence[str]) -> tuple[TraceStep, ...]:
    """A step is a run of the program that took longest."""
    busy = (work.stop_ps - work.start_ps).astype(np.float64)
    main = int(np.argmax(np.bincount(module, weights=busy)))
    mine = (module == main) & (run != MISSING)
    runs, which = np.unique(run[mine], return_inverse=True)
    starts = np.full(len(runs), _NEVER)
    np.minimum.at(starts, which, work.start_ps[mine])
    return steps_from(starts, work, names)


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

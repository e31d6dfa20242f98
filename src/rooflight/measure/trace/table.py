"""Where the time of a step went: seconds by class of op, layer, source line or op.

In: a `Trace`. Out: a `StepTable`. Seconds are those of one step on one device: a mean over the
devices, then over the steps. All rows add up to the step, `idle` included.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from rooflight.errors import UnknownNameError, UsageError
from rooflight.measure.trace.classify import COLLECTIVES
from rooflight.measure.trace.memory import (
    AllocatorPeak,
    ProgramPeak,
    allocator_peaks,
    program_peaks,
)
from rooflight.measure.trace.overlap import (
    HALVES,
    AsyncOp,
    HostGap,
    Overlap,
    async_ops,
    busy,
    host_gaps,
    overlaps,
)
from rooflight.measure.trace.record import F64, Peaks, Trace, TraceDevice, TraceOp

By = Literal["class", "layer", "line", "op"]
BY: tuple[By, ...] = ("class", "layer", "line", "op")
IDLE = "idle"
_MOST_CELLS = 5_000_000  # rows times steps
# Not bound by the chip's own memory; what is inside a loop or a call has runs of its own, and the
# bytes of an asynchronous op move while others run.
_NO_ROOF = frozenset({*COLLECTIVES, "host", "control"})


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One line of the table, of one step on one device."""

    key: str
    by_step: tuple[float, ...]  # seconds in each step
    count: float  # executions
    flops: float | None  # of ops under the chip's roof; None where one does not say
    nbytes: float | None
    roof_s: float | None  # the least that these FLOPs and bytes take
    roofed_s: float  # seconds of those ops
    compute_s: float | None = None  # the least that the FLOPs take, and that the bytes take
    memory_s: float | None = None

    @property
    def seconds(self) -> float:
        return sum(self.by_step) / len(self.by_step)

    @property
    def flops_per_s(self) -> float | None:
        return self.flops / self.seconds if self.flops is not None and self.seconds else None

    @property
    def bytes_per_s(self) -> float | None:
        return self.nbytes / self.seconds if self.nbytes is not None and self.seconds else None

    @property
    def of_roof(self) -> float | None:
        """max(FLOPs / peak, bytes / bandwidth) over the time taken (book, chapter 1).

        Above 1 where bytes count that never leave the chip, or FLOPs of a faster format.
        """
        known = self.roof_s is not None and self.roofed_s > 0
        return self.roof_s / self.roofed_s if known and self.roof_s is not None else None

    @property
    def intensity(self) -> float | None:
        """FLOPs per byte of HBM; the roof's ridge is where both bind alike."""
        return self.flops / self.nbytes if self.flops is not None and self.nbytes else None

    @property
    def bound(self) -> str | None:
        """Which of the two takes longer; None where there is no roof, or it is unknown."""
        if not self.roof_s or self.compute_s is None or self.memory_s is None:
            return None
        return "FLOPs" if self.compute_s >= self.memory_s else "HBM"


@dataclass(frozen=True, slots=True)
class StepTable:
    """The steps, how long each took (mean over devices), and what they were spent on."""

    by: By
    num_devices: int
    steps: tuple[str, ...]
    step_s: tuple[float, ...]
    rows: tuple[TraceRow, ...]

    @property
    def seconds(self) -> float:
        return sum(self.step_s) / len(self.step_s)

    def seconds_of(self, key: str) -> float:
        """Seconds per step of one row; 0 for a key that nothing ran under."""
        return next((row.seconds for row in self.rows if row.key == key), 0.0)


def step_names(trace: Trace) -> tuple[str, ...]:
    """The steps that any device has, in the order of their start."""
    return tuple(dict.fromkeys(step.name for d in trace.devices for step in d.steps))


def step_table(trace: Trace, *, by: By = "class", step: str | None = None) -> StepTable:
    """The table of all steps, or of one by its name; the longest rows first, idle last."""
    names = step_names(trace)
    if step is not None and step not in names:
        raise UnknownNameError("step", step, names)
    chosen = names if step is None else (step,)
    ran = [key_of(op, by) for device in trace.devices for op in device.work.ops]
    keys = {key: at for at, key in enumerate(dict.fromkeys(ran))}
    if len(keys) * len(chosen) > _MOST_CELLS:
        raise UsageError(
            f"{len(keys):,} rows of {len(chosen):,} steps are too large a table",
            hint=f"ask for one step: --step {chosen[0]}",
        )
    sums = _KeyTotals.empty(by, keys, {name: at for at, name in enumerate(chosen)})
    for device in trace.devices:
        sums.add(device)
    return sums.table(len(trace.devices))


def key_of(op: TraceOp, by: By) -> str:
    """Under which row an op is counted."""
    if by == "class":
        return op.op_class
    return (op.layer if by == "layer" else op.line if by == "line" else op.name) or "unknown"


@dataclass(frozen=True, slots=True)
class _KeyTotals:
    """Totals over devices, by key and step."""

    by: By
    keys: Mapping[str, int]
    steps: Mapping[str, int]
    seconds: F64  # keys x steps
    columns: F64  # keys x those of `_columns`
    step_s: F64
    devices: F64  # that have each step

    @classmethod
    def empty(cls, by: By, keys: Mapping[str, int], steps: Mapping[str, int]) -> "_KeyTotals":
        cells, rows = np.zeros((len(keys), len(steps))), np.zeros((len(keys), 7))
        return cls(by, keys, steps, cells, rows, np.zeros(len(steps)), np.zeros(len(steps)))

    def add(self, device: TraceDevice) -> None:
        """Adds what one device did in the chosen steps."""
        home = np.array([self.steps.get(one.name, -1) for one in device.steps], dtype=np.int64)
        for one, at in zip(device.steps, home.tolist(), strict=True):
            if at >= 0:
                self.step_s[at] += one.seconds
                self.devices[at] += 1
        work, own = device.work, busy(device)
        mine = home[own.step] >= 0
        step, execution, seconds = home[own.step[mine]], own.execution[mine], own.seconds[mine]
        op = work.which[execution]
        key = np.array([self.keys[key_of(one, self.by)] for one in work.ops], dtype=np.int64)
        cell = key[op] * len(self.steps) + step
        cells = np.bincount(cell, weights=seconds, minlength=self.seconds.size)
        self.seconds[...] += cells.reshape(self.seconds.shape)
        by_op = np.bincount(op, weights=seconds, minlength=len(work.ops))
        runs = np.bincount(op[np.unique(execution, return_index=True)[1]], minlength=len(work.ops))
        for at in np.flatnonzero(runs).tolist():
            row = _columns(work.ops[at], device.roof, float(runs[at]), float(by_op[at]))
            self.columns[key[at]] += row

    def table(self, num_devices: int) -> StepTable:
        share, total = np.maximum(self.devices, 1), max(1.0, float(self.devices.sum()))
        by_step, columns = self.seconds / share, self.columns / total
        rows = [
            _row(key, by_step[at].tolist(), columns[at].tolist())
            for key, at in self.keys.items()
            if columns[at, 0]
        ]
        rows.sort(key=lambda row: -row.seconds)
        step_s = self.step_s / share
        idle = np.maximum(step_s - by_step.sum(axis=0), 0.0)
        rows.append(TraceRow(IDLE, tuple(idle.tolist()), 0.0, None, None, None, 0.0))
        return StepTable(
            self.by, num_devices, tuple(self.steps), tuple(step_s.tolist()), tuple(rows)
        )


def _row(key: str, by_step: list[float], columns: list[float]) -> TraceRow:
    runs, flops, nbytes, roof_s, roofed_s, compute_s, memory_s = columns
    known = (_known(flops), _known(nbytes), _known(roof_s))
    least = (_known(compute_s), _known(memory_s))
    return TraceRow(key, tuple(by_step), runs, *known, roofed_s, *least)


def _columns(op: TraceOp, roof: Peaks, runs: float, seconds: float) -> F64:
    """Those of a `TraceRow`, from its runs on; NaN is unknown."""
    unknown = float("nan")
    if op.op_class in _NO_ROOF or HALVES.search(op.name):
        return np.array([runs, *[0.0] * 6])
    flops = unknown if op.flops is None else op.flops * runs
    nbytes = unknown if op.nbytes is None else op.nbytes * runs
    compute_s = flops / (roof.flops_per_s or unknown)
    memory_s = nbytes / (roof.hbm_bytes_per_s or unknown)
    least = np.maximum(compute_s, memory_s)
    return np.array([runs, flops, nbytes, least, seconds, compute_s, memory_s])


def _known(value: float) -> float | None:
    return None if np.isnan(value) else value


@dataclass(frozen=True, slots=True)
class Profile:
    """Every table of a trace, of all its steps or of one."""

    trace: Trace
    table: StepTable
    classes: StepTable  # the same by class
    flights: tuple[Overlap, ...]
    async_ops: tuple[AsyncOp, ...]
    gaps: tuple[HostGap, ...]
    allocators: tuple[AllocatorPeak, ...]
    programs: tuple[ProgramPeak, ...]
    hosts: tuple[tuple[str, StepTable], ...]  # by class; empty where one host was read

    @property
    def transfer_s(self) -> float:
        """In infeed, outfeed and transfers, where no other op runs."""
        return self.classes.seconds_of("host")

    @property
    def host_s(self) -> float:
        """Of a step, the most that the host can have cost: the device is idle, or transfers."""
        return self.classes.seconds_of(IDLE) + self.transfer_s


def profile(trace: Trace, *, by: By = "class", step: str | None = None) -> Profile:
    """Where the time went, what flew, what the host did, and the memory."""
    classes = step_table(trace, step=step)
    names = dict.fromkeys(device.host for device in trace.devices)
    return Profile(
        trace,
        classes if by == "class" else step_table(trace, by=by, step=step),
        classes,
        overlaps(trace, step=step),
        async_ops(trace, step=step),
        host_gaps(trace, step=step),
        allocator_peaks(trace),
        program_peaks(trace),
        tuple((name, step_table(_of_host(trace, name), step=step)) for name in names if name),
    )


def _of_host(trace: Trace, host: str) -> Trace:
    return replace(trace, devices=tuple(d for d in trace.devices if d.host == host))


@dataclass(frozen=True, slots=True)
class TimeDiff:
    """Seconds per step under one key, in both."""

    key: str
    before_s: float
    after_s: float

    @property
    def difference_s(self) -> float:
        return self.after_s - self.before_s


def changes(before: StepTable, after: StepTable) -> tuple[TimeDiff, ...]:
    """Every key of either table; one that is missing took no time."""
    keys = dict.fromkeys([row.key for table in (before, after) for row in table.rows])
    found = [TimeDiff(key, before.seconds_of(key), after.seconds_of(key)) for key in keys]
    return tuple(sorted(found, key=lambda change: -abs(change.difference_s)))

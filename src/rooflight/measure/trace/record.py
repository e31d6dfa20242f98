"""A trace as devices with their ops, steps and roofs, and a host with its threads.

Records only; `read` makes them, `table`, `overlap` and `host_gaps` read them.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from rooflight.hardware.chip import Chip
from rooflight.measure.trace.classify import OpClass
from rooflight.measure.trace.events import Events
from rooflight.measure.trace.intervals import SECONDS
from rooflight.measure.trace.wire import I64, Malformed
from rooflight.measure.trace.xspace import Plane


@dataclass(frozen=True, slots=True)
class TraceOp:
    """What was run: one instruction of a program, however often it ran."""

    name: str
    op_class: OpClass
    layer: str
    line: str  # of the source
    flops: float | None  # of one execution
    nbytes: int | None


@dataclass(frozen=True, slots=True)
class Timeline:
    """Executions of ops, each an index into `ops` and a span of picoseconds."""

    ops: tuple[TraceOp, ...]
    which: I64
    start_ps: I64
    stop_ps: I64

    @classmethod
    def empty(cls) -> "Timeline":
        none = np.zeros(0, dtype=np.int64)
        return cls((), none, none, none)

    def __len__(self) -> int:
        return len(self.which)


@dataclass(frozen=True, slots=True)
class TraceStep:
    """From the start of a step to the start of the next; the last one ends with its last op."""

    name: str
    start_ps: int
    stop_ps: int

    @property
    def seconds(self) -> float:
        return (self.stop_ps - self.start_ps) * SECONDS


@dataclass(frozen=True, slots=True)
class Peaks:
    """What a device could do at most, and who says so; None is unknown."""

    flops_per_s: float | None
    hbm_bytes_per_s: float | None
    source: str


@dataclass(frozen=True, slots=True)
class TraceDevice:
    """One device: what ran on it, what flew meanwhile, its steps."""

    name: str
    kind: str  # "TPU v6 Lite"; empty if the trace does not say
    work: Timeline
    flights: Timeline  # asynchronous ops from their start to their end
    steps: tuple[TraceStep, ...]
    roof: Peaks


@dataclass(frozen=True, slots=True)
class Thread:
    """A thread of the host; `names` is where its events are named."""

    name: str
    events: Events
    names: Plane

    def event_name(self, kind: int) -> str:
        """What an event is called; a damaged name is no reason to refuse a trace that was read."""
        try:
            return self.names.kind(kind).name
        except Malformed:
            return f"unreadable {kind}"


@dataclass(frozen=True, slots=True)
class Trace:
    """What one host recorded."""

    path: Path
    devices: tuple[TraceDevice, ...]
    threads: tuple[Thread, ...]


def under_roof(trace: Trace, chip: Chip, *, dtype: str = "bf16") -> Trace:
    """The same trace, every device held to the peak of a chip at a dtype and to its memory."""
    used = chip.matmul_dtype(dtype)
    roof = Peaks(chip.peak_flops(used), chip.hbm_bytes_per_s, f"{chip.title}, {used}")
    devices = tuple(replace(device, roof=roof) for device in trace.devices)
    return replace(trace, devices=devices)

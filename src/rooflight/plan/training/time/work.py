"""What takes time on a chip in a step, as records: works, hops, and the parts of a step.

Seconds are those at the roofs of the catalog; `parts` lists them, a calibration prices them.
"""

from dataclasses import dataclass
from typing import Literal

from rooflight.plan.training.time.traffic import Traffic

WorkKind = Literal["matmul", "experts", "attention", "elementwise", "dispatch", "optimizer", "host"]
WORK_KINDS: tuple[WorkKind, ...] = (
    *("matmul", "experts", "attention", "elementwise", "dispatch", "optimizer"),
    "host",
)


@dataclass(frozen=True, slots=True)
class Work:
    """Matmuls or memory passes of one kind, `count` times in the step."""

    kind: WorkKind
    dtype: str
    flops_s: float  # one of them at the peak of its dtype
    bytes_s: float  # one of them at the catalog's HBM
    count: float
    once: bool = False  # outside the microbatches


@dataclass(frozen=True, slots=True)
class Hops:
    """One pass of blocks from neighbour to neighbour, each beside a part of the works."""

    works: tuple[Work, ...]
    traffic: tuple[Traffic, ...]
    last: tuple[Traffic, ...]  # the hop that brings sums home when all works are done
    devices: int
    count: float


@dataclass(frozen=True, slots=True)
class Parts:
    """A step of the slowest pipeline stage. Counts are of all its microbatches."""

    works: tuple[Work, ...]
    traffic: tuple[Traffic, ...]
    microbatches: int
    bubble: float  # the time of this many microbatches is lost to filling and draining
    model_flops: float  # a chip's share, causal
    peak_flops: float  # of the dtype that matmuls run in
    is_step: bool = True  # a whole step, with the host's work around it; else one kernel
    host_s: float = 0.0  # activations that wait in host memory, out and back
    hides_exchanges: bool = True  # tokens may travel beside other work
    hops: tuple[Hops, ...] = ()

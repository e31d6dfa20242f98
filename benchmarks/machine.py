"""The machine of a benchmark: its rates as `rooflight measure` sees them, and other load."""

import os
import time
from dataclasses import dataclass
from datetime import date
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from rooflight.hardware.catalog import load_chip
from rooflight.hardware.chip import Source
from rooflight.hardware.slice import Slice
from rooflight.measure.microbench.child import measure
from rooflight.measure.microbench.host_chip import host_of

ROUNDS = 3
_TICKS = Path("/proc/stat")


@dataclass(frozen=True, slots=True)
class Machine:
    """All cores as one device, in f32; None is unknown."""

    cores: int | None
    flops_per_s: float | None = None
    memory_bytes_per_s: float | None = None


@cache
def this_host() -> Slice:
    """This host as a chip of one device, measured once by a child process."""
    rows = measure("ops:host", devices=1, rounds=ROUNDS)
    source = Source("measured", "rooflight measure", "", str(date.today()))
    return Slice(host_of(rows, load_chip("this-host"), devices=1, source=source).chip, (1,))


def this_machine() -> Machine:
    cores = os.cpu_count() or 1
    if find_spec("jax") is None:
        return Machine(cores)
    chip = this_host().chip
    return Machine(cores, chip.flops["f32"], chip.hbm_bytes_per_s)


class OtherLoad:
    """The part of the machine that other processes used since this was made."""

    def __init__(self) -> None:
        self._begin, self._busy, self._own = time.perf_counter(), _busy_s(), _own_s()

    def part(self, *, running_s: float = 0.0) -> float | None:
        """`running_s` are CPU seconds of our children that still run; None where unknown."""
        busy = _busy_s()
        if busy is None or self._busy is None:
            return None
        other = busy - self._busy - (_own_s() - self._own) - running_s
        whole = (time.perf_counter() - self._begin) * (os.cpu_count() or 1)
        return round(max(0.0, other) / whole, 3)


def _own_s() -> float:
    """Of this process and its children that ended."""
    return sum(os.times()[:4])


def _busy_s() -> float | None:
    """Of all processors since the start, idle and waiting for a disk left out."""
    if not _TICKS.exists():
        return None
    fields = [int(x) for x in _TICKS.read_text().splitlines()[0].split()[1:]]
    return (sum(fields[:8]) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")

"""From a path to a `Trace`: find the file, map it, read it; whatever is wrong is one sentence."""

import mmap
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rooflight.errors import ParseError, UsageError
from rooflight.measure.trace.devices import WANTED, WITHOUT_STATS, read_devices
from rooflight.measure.trace.record import Trace
from rooflight.measure.trace.wire import Malformed
from rooflight.measure.trace.xspace import Plane, read_planes

EXAMPLE = Path(__file__).with_name("example.xplane.pb")


def find_trace(path: Path) -> Path:
    """The file itself, or the newest one that a folder holds."""
    if not path.is_dir():
        return path
    found = sorted(path.rglob("*.xplane.pb"))
    if not found:
        raise UsageError(
            f"{path} holds no .xplane.pb", hint="give the folder that jax.profiler.trace wrote to"
        )
    newest = max(found, key=lambda p: (p.stat().st_mtime, p.name)).parent
    files = [p for p in found if p.parent == newest]
    if len(files) > 1:
        raise UsageError(
            f"{newest} holds the traces of {len(files)} hosts",
            hint="give one of them: " + ", ".join(str(p) for p in files[:4]),
        )
    return files[0]


def read_trace(path: Path) -> Trace:
    """Reads a trace; `path` is an .xplane.pb or a folder that holds one."""
    path = find_trace(path)
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
    return Trace(path, devices, threads)


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
    return read_planes(data, raw, wanted=WANTED, without_stats=WITHOUT_STATS)

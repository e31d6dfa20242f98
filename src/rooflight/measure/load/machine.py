"""What else this machine did during a run: CPU time that neither client nor server used.

In: the port of a local server. Out: the share of all cores that went to other processes, or None
where that cannot be told: a server elsewhere, one that another user runs, or no /proc.
"""

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

HIGH = 0.08  # of the cores; engines that spin at barriers then slow down many times
_LOCAL = ("127.0.0.1", "localhost", "::1")
_LISTENS = "0A"
_PROC = Path("/proc")


class CpuUsage(NamedTuple):
    """CPU seconds so far: of the machine; of this process, the server and their children."""

    at_s: float
    machine_s: float
    ours_s: float


def busy(url: str) -> CpuUsage | None:
    """A reading; two of them tell the load between."""
    address = urlsplit(url)
    try:
        server = _listener(address.port or 80) if address.hostname in _LOCAL else None
        if server is None:
            return None
        return CpuUsage(time.monotonic(), _machine_s(), _tree_s({server, os.getpid()}))
    except (OSError, ValueError, LookupError):
        return None


def other_load(before: CpuUsage | None, after: CpuUsage | None) -> float | None:
    """The share of all cores that other processes used between two readings."""
    if before is None or after is None or after.at_s <= before.at_s:
        return None
    used = (after.machine_s - before.machine_s) - (after.ours_s - before.ours_s)
    return max(0.0, used / ((after.at_s - before.at_s) * (os.cpu_count() or 1)))


def _tick_s() -> float:
    return 1 / os.sysconf("SC_CLK_TCK")


def _machine_s() -> float:
    user, nice, system, _, _, irq, softirq, steal, *_ = (
        int(word) for word in (_PROC / "stat").read_text().split("\n")[0].split()[1:]
    )
    return (user + nice + system + irq + softirq + steal) * _tick_s()


def _tree_s(roots: set[int]) -> float:
    """CPU seconds of processes and all below them."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for path in _PROC.glob("[0-9]*/stat"):
        with suppress(OSError):  # it ended meanwhile
            words = path.read_text().rpartition(")")[2].split()  # its name may hold blanks
            pid = int(path.parent.name)
            parents[pid], ticks[pid] = int(words[1]), int(words[11]) + int(words[12])
    return sum(count for pid, count in ticks.items() if _is_below(pid, roots, parents)) * _tick_s()


def _is_below(pid: int, roots: set[int], parents: dict[int, int]) -> bool:
    while pid and pid not in roots:
        pid = parents.get(pid, 0)
    return bool(pid)


def _listener(port: int) -> int | None:
    """The process that listens at a port."""
    inodes: set[str] = set()
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in (_PROC / "net" / table).read_text().splitlines()[1:]:
                words = line.split()
                if words[3] == _LISTENS and int(words[1].rpartition(":")[2], 16) == port:
                    inodes.add(f"socket:[{words[9]}]")
    for path in _PROC.glob("[0-9]*/fd/*"):
        with suppress(OSError):
            if os.readlink(path) in inodes:
                return int(path.parts[2])
    return None

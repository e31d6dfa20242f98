"""Who listens where: the TCP sockets of a process and of all that it started."""

import ipaddress
from collections.abc import Iterator
from pathlib import Path

_LISTEN = "0A"
Address = tuple[str, int]


def family(pid: int) -> Iterator[int]:
    """A process and its descendants."""
    yield pid
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = path.read_text().split()
        except OSError:  # it has just ended
            continue
        for child in children:
            yield from family(int(child))


def listeners(pid: int) -> set[Address]:
    """Where a process and its descendants listen."""
    mine: set[str] = set()
    for one in family(pid):
        for link in Path(f"/proc/{one}/fd").glob("*"):
            try:
                target = str(link.readlink())
            except OSError:
                continue
            if target.startswith("socket:["):
                mine.add(target[8:-1])
    return {address for inode, address in _listening() if inode in mine}


def _listening() -> Iterator[tuple[str, Address]]:
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTEN:
                host, _, port = fields[1].partition(":")
                yield fields[9], (_text(host), int(port, 16))


def _text(host: str) -> str:
    """The kernel writes words of four bytes, each the other way round."""
    raw = bytes.fromhex(host)
    words = b"".join(raw[i : i + 4][::-1] for i in range(0, len(raw), 4))
    found = ipaddress.ip_address(words)
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return str(mapped or found)

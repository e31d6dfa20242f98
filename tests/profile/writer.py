"""Writes XSpace messages: the fields that XLA's profiler writes, by their numbers in xplane.proto.

Planes, lines and stats have the names that traces of TPUs have (XLA's xplane_schema).
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field


def varint(value: int) -> bytes:
    """Seven bits a byte, the lowest first; negative numbers as 64 bits."""
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def number(key: int, value: int) -> bytes:
    return varint(key << 3) + varint(value)


def message(key: int, payload: bytes) -> bytes:
    return varint(key << 3 | 2) + varint(len(payload)) + payload


def text(key: int, value: str) -> bytes:
    return message(key, value.encode())


Value = int | float | str | bytes


@dataclass
class PlaneWriter:
    """One plane; names are numbered as they come."""

    name: str
    lines: list[bytes] = field(default_factory=list[bytes])
    own: bytes = b""
    words: dict[str, int] = field(default_factory=dict[str, int])
    kinds: dict[str, int] = field(default_factory=dict[str, int])
    entries: list[bytes] = field(default_factory=list[bytes])

    def word(self, name: str) -> int:
        return self.words.setdefault(name, len(self.words) + 1)

    def stat(self, name: str, value: Value, *, by_word: bool = False) -> bytes:
        head = number(1, self.word(name))
        if by_word:
            return head + number(7, self.word(str(value)))
        if isinstance(value, float):
            return head + varint(2 << 3 | 1) + struct.pack("<d", value)
        if isinstance(value, int):
            return head + number(4, value)
        return head + (text(5, value) if isinstance(value, str) else message(6, value))

    def fact(self, name: str, value: Value) -> None:
        """A stat of the plane itself."""
        self.own += message(6, self.stat(name, value))

    def kind(self, name: str, display: str = "", **stats: Value) -> int:
        """Metadata of events, once for each name."""
        return self.kind_of(name, display, stats)

    def kind_of(self, name: str, display: str, stats: Mapping[str, Value]) -> int:
        """The same for stats whose names are not words of Python."""
        if name not in self.kinds:
            self.kinds[name] = at = len(self.kinds) + 1
            shown = text(4, display) if display else b""
            said = b"".join(message(5, self.stat(key, value)) for key, value in stats.items())
            entry = number(1, at) + message(2, number(1, at) + text(2, name) + shown + said)
            self.entries.append(message(4, entry))
        return self.kinds[name]

    def line(self, name: str, events: list[bytes], *, timestamp_ns: int = 0) -> None:
        head = text(2, name) + number(3, timestamp_ns)
        self.lines.append(message(3, head + b"".join(message(4, event) for event in events)))

    def payload(self) -> bytes:
        words = b"".join(
            message(5, number(1, at) + message(2, number(1, at) + text(2, word)))
            for word, at in self.words.items()
        )
        return text(2, self.name) + b"".join([*self.lines, *self.entries]) + words + self.own


def event(kind: int, start_ps: int, duration_ps: int, *stats: bytes) -> bytes:
    own = b"".join(message(4, stat) for stat in stats)
    return number(1, kind) + number(2, start_ps) + number(3, duration_ps) + own


def space(*planes: PlaneWriter) -> bytes:
    return b"".join(message(1, plane.payload()) for plane in planes)

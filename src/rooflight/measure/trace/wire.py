"""Protocol buffers read by hand: the fields of one message.

In: bytes of a file and spans of it. Out: fields as numbers and spans. Nothing is copied, nothing
recurses, and every length is held against its span, so a hostile file ends in `Malformed`.
Wire types: 0 a varint, 1 eight bytes, 2 a length and so many bytes, 5 four bytes.
"""

import mmap
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]
U8 = npt.NDArray[np.uint8]
Data = bytes | mmap.mmap
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_WORD = (1 << 64) - 1


class Malformed(Exception):
    """Not the format: what is wrong, and at which byte."""

    def __init__(self, what: str, at: int) -> None:
        super().__init__(f"{what} at byte {at:,}")


class WireField(NamedTuple):
    """One field: a number as 64 bits, or the span of its bytes."""

    number: int
    wire: int
    value: int  # of a span: its length
    start: int

    @property
    def stop(self) -> int:
        return self.start + self.value

    @property
    def signed(self) -> int:
        """The value as int64, which is how negative numbers are written."""
        return self.value - (1 << 64) if self.value >> 63 else self.value


def varint(data: Data, at: int, stop: int) -> tuple[int, int]:
    """A number of seven bits a byte, the lowest first, and where it ends."""
    if at < stop and (byte := data[at]) < 128:  # nearly all of them
        return byte, at + 1
    value = 0
    for shift in range(0, 70, 7):
        if at >= stop:
            raise Malformed("a number runs over its end", at)
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value & _WORD, at
    raise Malformed("a number of more than ten bytes", at)


def fields(data: Data, start: int, stop: int) -> Iterator[WireField]:
    """The fields of one message, in order."""
    at = start
    while at < stop:
        found, at = field_at(data, at, stop)
        yield found


def field_at(data: Data, at: int, stop: int) -> tuple[WireField, int]:
    """The field at a place, and where the next one begins."""
    key, at = varint(data, at, stop)
    wire = key & 7
    if wire == VARINT:
        value, end = varint(data, at, stop)
        return WireField(key >> 3, wire, value, at), end
    if wire == BYTES:
        size, at = varint(data, at, stop)
    elif wire in (FIXED64, FIXED32):
        size = 8 if wire == FIXED64 else 4
    else:
        raise Malformed(f"a field of wire type {wire}", at)
    if size > stop - at:
        raise Malformed(f"{size:,} bytes where {stop - at:,} are left", at)
    value = size if wire == BYTES else int.from_bytes(data[at : at + size], "little")
    return WireField(key >> 3, wire, value, at), at + size


def numbers(data: Data, found: WireField) -> list[int]:
    """A repeated number, packed or one by one."""
    if found.wire != BYTES:
        return [found.signed]
    values: list[int] = []
    at = found.start
    while at < found.stop:
        value, at = varint(data, at, found.stop)
        values.append(value)
    return values


def text(data: Data, found: WireField) -> str:
    """A string; bytes that are not UTF-8 are shown as such."""
    return data[found.start : found.stop].decode("utf-8", "backslashreplace")

"""TensorBoard's event file, written by hand: two small protobuf messages in TFRecord frames.

A frame is length (u64), masked CRC-32C of it, bytes, masked CRC-32C of those, little-endian. The
messages are `Event {1: wall_time double, 2: step int64, 3: file_version string, 5: summary}` and
`Summary {1: value {1: tag string, 2: simple_value float}}`.
"""

import os
import struct
import sys
import time
from collections.abc import Mapping
from pathlib import Path

_POLYNOMIAL = 0x82F63B78  # CRC-32C, reflected
_MASK = 0xA282EAD8


def _table() -> list[int]:
    table: list[int] = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (_POLYNOMIAL if byte & 1 else 0)
        table.append(byte)
    return table


_TABLE = _table()


class SummaryWriter:
    """Appends scalars to a new file of a folder; a full disk loses them and nothing else."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"events.out.tfevents.{time.time_ns()}.{os.getpid()}"
        self._file = path.open("ab")
        self._put(_double(1, time.time()) + _bytes(3, b"brain.Event:2"))

    def write(self, step: int, scalars: Mapping[str, float], at: float) -> None:
        values = (_bytes(1, tag.encode()) + _float(2, value) for tag, value in scalars.items())
        summary = b"".join(_bytes(1, value) for value in values)
        self._put(_double(1, at) + _varint(2 << 3) + _varint(step) + _bytes(5, summary))

    def close(self) -> None:
        self._file.close()

    def _put(self, message: bytes) -> None:
        length = struct.pack("<Q", len(message))
        try:
            self._file.write(length + _masked(length) + message + _masked(message))
            self._file.flush()
        except OSError as error:
            print(f"a summary was lost: {error}", file=sys.stderr, flush=True)


def _masked(data: bytes) -> bytes:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF)


def _varint(value: int) -> bytes:
    found = bytearray()
    while value >= 1 << 7:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _double(field: int, value: float) -> bytes:
    return _varint(field << 3 | 1) + struct.pack("<d", value)


def _float(field: int, value: float) -> bytes:
    return _varint(field << 3 | 5) + struct.pack("<f", value)

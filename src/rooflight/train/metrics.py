"""What a step was worth: its learning rate, tokens, MFU by every convention; TensorBoard's file."""

import os
import struct
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from rooflight.models.graph.build import model_graph
from rooflight.models.graph.utilisation import CONVENTIONS
from rooflight.train.run import Run

# TensorBoard's event file, written by hand: two small protobuf messages in TFRecord frames.

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


FOLDER = "tensorboard"
_SCALARS = ("loss", "gradient_norm", "learning_rate", "tokens", "tokens_per_s")


class TrainMetrics:
    """Of one run; a step's facts go in, the same with its rates come out."""

    def __init__(self, run: Run, device_kind: str) -> None:
        self._run, plan = run, run.plan
        on = plan.placed().slice
        graph = model_graph(plan.model)
        # On anything but the chip of the plan its peak says nothing.
        peak = on.chip.peak_flops(plan.dtype) if "TPU" in device_kind else None
        self._peak = peak * on.num_chips if peak else None
        self._flops = {c.name: c.flops_per_token(graph, plan.seq) for c in CONVENTIONS}
        self._writer = SummaryWriter(run.folder / FOLDER)

    def step(self, facts: dict[str, Any]) -> dict[str, Any]:
        step, tokens = cast(int, facts["step"]), self._run.plan.tokens
        rate = tokens / cast(float, facts["seconds"])
        found: dict[str, Any] = {"tokens_per_s": rate, "tokens": (step + 1) * tokens}
        found["learning_rate"] = self._run.optimizer.rate_at(step, self._run.steps)
        if self._peak is not None:
            found["mfu"] = {name: rate * flops / self._peak for name, flops in self._flops.items()}
        told = {**facts, **found}
        scalars = {name: told[name] for name in _SCALARS if name in told}
        scalars |= {f"mfu/{name}": value for name, value in found.get("mfu", {}).items()}
        self._writer.write(step, scalars, time.time())
        return told

    def validated(self, facts: dict[str, Any]) -> None:
        """Written at the last step before it, beside that step's own loss."""
        scalars = {"validation_loss": facts["loss"]}
        self._writer.write(max(0, facts["step"] - 1), scalars, time.time())

    def close(self) -> None:
        self._writer.close()

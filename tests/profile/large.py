"""Traces as large as wanted: the shape of a long run on several TPU cores with a busy host."""

from collections.abc import Iterator
from pathlib import Path

from .tpu import US
from .writer import PlaneWriter, message, number, text, varint

_CORES = 4
_OPS_A_STEP = 500
_BYTES_AN_EVENT = 32  # about; of ops with two stats and of events of the host


def write_large(path: Path, *, nbytes: int) -> int:
    """Writes a trace of about so many bytes; gives the number of its events."""
    count = nbytes // _BYTES_AN_EVENT
    written = 0
    with path.open("wb") as file:
        for core in range(_CORES):
            plane, events = PlaneWriter(f"/device:TPU:{core}"), count // 6
            written += _write_plane(file.write, plane, "XLA Ops", _ops(plane, events), "Steps")
        plane = PlaneWriter("/host:CPU")
        written += _write_plane(file.write, plane, "python", _calls(plane, count // 3), "")
    return written


def _write_plane(
    write: object, plane: PlaneWriter, line: str, events: list[bytes], steps: str
) -> int:
    assert callable(write)
    body = text(2, line) + b"".join(events)
    plane.lines.append(message(3, body))
    if steps:
        ends = range(0, len(events), _OPS_A_STEP)
        marks = [number(1, plane.kind(str(at))) + number(2, at * US) + number(3, US) for at in ends]
        plane.line(steps, marks)
    write(message(1, plane.payload()))
    return len(events)


def _ops(plane: PlaneWriter, count: int) -> list[bytes]:
    kinds = [
        plane.kind(
            f"%fusion.{i} = bf16[512,512]{{1,0}} fusion(%p.{i}), kind=kOutput",
            f"fusion.{i}",
            hlo_category="convolution fusion" if i % 3 else "loop fusion",
            tf_op=f"jit(step)/jvp(layer.{i % 20})/dot_general:",
            source=f"model.py:{i}",
            flops=10**9 + i,
            bytes_accessed=10**6 + i,
        )
        for i in range(_OPS_A_STEP)
    ]
    heads = [number(1, kind) for kind in kinds]
    offset = number(1, plane.word("device_offset_ps"))
    length = number(1, plane.word("device_duration_ps"))
    return list(_op_events(heads, offset, length, count))


def _op_events(heads: list[bytes], offset: bytes, length: bytes, count: int) -> Iterator[bytes]:
    """One op a microsecond, 0.9 of it busy."""
    busy = varint(900_000)
    said = message(4, length + b"\x20" + busy)
    for at in range(count):
        start = varint(at * US)
        stats = message(4, offset + b"\x20" + start) + said
        own = heads[at % _OPS_A_STEP] + b"\x10" + start + b"\x18" + busy + stats
        yield b"\x22" + varint(len(own)) + own


def _calls(plane: PlaneWriter, count: int) -> list[bytes]:
    heads = [number(1, plane.kind(f"$module.py:{i} function_{i}")) for i in range(2000)]
    said = message(4, plane.stat("_src", "external/xla/xla/pjrt/pjrt_client.cc", by_word=True))
    made: list[bytes] = []
    for at in range(count):
        own = heads[at % 2000] + number(2, at * 2 * US) + number(3, US) + said * 2
        made.append(b"\x22" + varint(len(own)) + own)
    return made

"""Ops of a CPU that are handed to a pool: until when they count."""

from pathlib import Path

import pytest

from rooflight.measure.trace.read import read_trace
from rooflight.measure.trace.record import Trace
from rooflight.measure.trace.table import step_table

from .tpu import US
from .writer import PlaneWriter, event, message, number, space, text

SHAPE = number(2, 11) + message(3, bytes([8, 4]))  # f32[8,4]
WEIGHT = number(2, 11) + message(3, bytes([4, 4]))


def _program() -> bytes:
    """x[8,4] * w[4,4], and an addition that reads it through a view."""
    dot = message(30, message(1, b"\x01") + message(2, b"\x00"))
    instructions = [
        text(1, "x") + text(2, "parameter") + message(3, SHAPE) + number(35, 1),
        text(1, "w") + text(2, "parameter") + message(3, WEIGHT) + number(35, 2),
        text(1, "dot.1") + text(2, "dot") + message(3, SHAPE) + dot + _ids(3, 1, 2),
        text(1, "view") + text(2, "bitcast") + message(3, SHAPE) + _ids(4, 3),
        text(1, "add.1") + text(2, "add") + message(3, SHAPE) + _ids(5, 4, 4),
    ]
    body = b"".join(message(2, one) for one in instructions) + number(5, 1)
    return message(1, text(1, "jit_f") + message(3, body))


def _ids(own: int, *operands: int) -> bytes:
    return number(35, own) + message(36, bytes(operands))


def _trace(path: Path, *, with_program: bool) -> Trace:
    """A dot handed over in 1 us, an addition at 30 us, the end of the dot told at 50 us."""
    meta, host = PlaneWriter("/host:metadata"), PlaneWriter("/host:CPU")
    if with_program:
        meta.kind_of("jit_f(0)", "", {"Hlo Proto": _program()})

    def op(name: str, at: int, length: int, serial: int) -> bytes:
        said = {"hlo_op": name, "hlo_module": "jit_f", "program_id": 0, "run_id": 1}
        numbers = {**said, "device_ordinal": 0, "_p": serial}
        stats = [host.stat(key, value) for key, value in numbers.items()]
        return event(host.kind(name), at * US, length * US, *stats)

    def end(name: str, at: int, serial: int) -> bytes:
        return event(host.kind(f"end: {name}"), at * US, 0, host.stat("_c", serial))

    host.line("tf_XLAPjRtCpuClient/1", [op("dot.1", 0, 1, 71), op("other", 2, 3, 72)])
    host.line(
        "tf_XLAEigen/2", [op("add.1", 30, 40, 73), end("dot.1", 50, 71), end("add.1", 70, 73)]
    )
    path.write_bytes(space(meta, host))
    return read_trace(path)


@pytest.mark.parametrize(("with_program", "until"), [(True, 30), (False, 50)])
def test_an_op_is_done_when_its_result_is_read_or_its_end_is_told(
    with_program: bool, until: int, tmp_path: Path
) -> None:
    (device,) = _trace(tmp_path / "x.xplane.pb", with_program=with_program).devices
    spans = {
        device.work.ops[int(which)].name: (int(start) // US, int(stop) // US)
        for which, start, stop in zip(
            device.work.which.tolist(),
            device.work.start_ps.tolist(),
            device.work.stop_ps.tolist(),
            strict=True,
        )
    }
    assert spans == {"dot.1": (0, until), "other": (2, 5), "add.1": (30, 70)}


def test_flops_and_bytes_are_read_from_the_program(tmp_path: Path) -> None:
    table = step_table(_trace(tmp_path / "x.xplane.pb", with_program=True))
    (matmul,) = [row for row in table.rows if row.key == "matmul"]
    assert matmul.flops == 2 * 8 * 4 * 4
    assert matmul.nbytes == 4 * (8 * 4 + 4 * 4 + 8 * 4)
    assert matmul.seconds == pytest.approx(27e-6)  # `other` began later and took 3 of 30

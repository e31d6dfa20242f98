# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
# jaxlib's reader of traces has no types.
"""The memory of a trace, and what is in flight beside collectives, on a trace that says them."""

from pathlib import Path

import pytest

from rooflight.measure.trace.memory import AllocatorPeak, ProgramPeak
from rooflight.measure.trace.read import EXAMPLE, read_trace
from rooflight.measure.trace.table import Profile, profile

from .rich import GB, MODULE, rich_trace


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "host.xplane.pb"
    path.write_bytes(rich_trace())
    return path


@pytest.fixture
def found(path: Path) -> Profile:
    return profile(read_trace(path), by="op")


def test_the_peak_of_an_allocator_is_when_arrays_and_programs_hold_the_most(found: Profile) -> None:
    assert found.allocators == (AllocatorPeak("device 0", 5 * GB, 3 * GB, 24 * GB),)
    assert found.allocators[0].nbytes == 8 * GB


def test_the_peak_is_the_largest_that_jaxs_reader_sees(path: Path, found: Profile) -> None:
    profiler = pytest.importorskip("jax.profiler")
    held = [
        stats["bytes_allocated"] + stats["bytes_reserved"]
        for plane in profiler.ProfileData.from_file(str(path)).planes
        for line in plane.lines
        for stats in (dict(event.stats) for event in line.events)
        if "bytes_allocated" in stats
    ]
    assert len(held) == 3
    assert max(held) == found.allocators[0].nbytes


def test_a_program_has_its_allocations_and_the_buffers_that_meet(found: Profile) -> None:
    """c comes after a is freed, so a and b are the peak."""
    assert found.programs == (ProgramPeak(MODULE, 100, 60, (("a", 40), ("b", 20))),)


def test_a_program_of_a_cpu_has_its_buffers_too() -> None:
    (program,) = profile(read_trace(EXAMPLE)).programs
    assert program.name == "jit_step(0)"
    assert sum(size for _, size in program.largest) <= program.temporary_bytes
    assert program.nbytes == program.fixed_bytes + program.temporary_bytes > 20e6


def test_a_copy_in_flight_is_hidden_where_an_op_runs(found: Profile) -> None:
    (copies,) = found.flights
    assert (copies.kind, round(copies.in_flight_s * 1e6), round(copies.exposed_s * 1e6)) == (
        *("copy", 57, 16),
    )
    (op,) = found.async_ops
    assert (op.name, op.count) == ("copy-start.1", 1)
    assert op.exposed_s == pytest.approx(copies.exposed_s)


def test_halves_of_an_asynchronous_op_are_held_to_no_roof(found: Profile) -> None:
    rows = {row.key: row for row in found.table.rows}
    assert rows["copy-done.1"].of_roof is None and rows["copy-done.1"].nbytes == 0
    assert (rows["fusion.1"].bound, rows["fusion.2"].bound) == ("FLOPs", "HBM")
    assert rows["fusion.2"].intensity == pytest.approx(1_000 / 16_000_000)


def test_what_the_host_can_have_cost_is_idle_time_and_transfers(found: Profile) -> None:
    idle = found.classes.seconds_of("idle")
    assert found.transfer_s == pytest.approx(8e-6)
    assert found.host_s == pytest.approx(idle + 8e-6) == pytest.approx(22e-6)

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
# jaxlib's reader of traces has no types.
"""Reading: the same events as jaxlib's own reader, from a path of any kind; errors of one line."""

import importlib.util
import shutil
from pathlib import Path

import pytest

from rooflight.errors import ParseError, UsageError
from rooflight.measure.trace.read import EXAMPLE, find_traces, planes_of, read_trace
from rooflight.measure.trace.record import Trace
from rooflight.measure.trace.table import profile, step_table
from rooflight.ui.answers.trace import profile_answer

from .tpu import US, tpu_trace
from .writer import PlaneWriter, event, space

needs_jax = pytest.mark.skipif(
    importlib.util.find_spec("jax") is None, reason="the other reader is in jax"
)


@needs_jax
@pytest.mark.parametrize("which", ["recorded", "written"])
def test_planes_lines_and_events_are_those_of_the_reader_of_jax(which: str, tpu_path: Path) -> None:
    from jax.profiler import ProfileData

    path = EXAMPLE if which == "recorded" else tpu_path
    theirs = [
        (plane.name, line.name, event.name, round(event.start_ns * 1e3), event.duration_ns)
        for plane in ProfileData.from_file(str(path)).planes
        for line in plane.lines
        for event in line.events
    ]
    ours = [
        (plane.name, line.name, plane.kind(kind).name, start, duration / 1e3)
        for plane in planes_of(path)
        for line in plane.lines
        for kind, start, duration in zip(
            line.events.kind.tolist(),
            line.events.start_ps.tolist(),
            line.events.duration_ps.tolist(),
            strict=True,
        )
    ]
    assert len(ours) == len(theirs) > 50
    origin = min(start for _, _, _, start, _ in theirs) - min(start for _, _, _, start, _ in ours)
    for one, other in zip(ours, theirs, strict=True):
        assert one[:3] == other[:3]
        assert one[3] + origin == pytest.approx(other[3], abs=1000)  # theirs are whole ns
        assert one[4] == pytest.approx(other[4], abs=1)


def test_a_device_says_its_kind_its_roof_and_its_steps(tpu: Trace) -> None:
    assert [device.name for device in tpu.devices] == ["/device:TPU:0", "/device:TPU:1"]
    one = tpu.devices[0]
    assert one.kind == "TPU v6 Lite"
    assert (one.roof.flops_per_s, one.roof.hbm_bytes_per_s) == (918e12, 1640e9)
    assert [step.name for step in one.steps] == ["7", "8", "9"]
    assert [step.seconds for step in one.steps] == pytest.approx([100e-6, 100e-6, 90e-6])


def test_an_op_has_its_class_layer_line_flops_and_bytes_of_main_memory(tpu: Trace) -> None:
    op = next(op for op in tpu.devices[0].work.ops if op.name == "fusion.1")
    assert (op.op_class, op.layer, op.line) == ("matmul", "mlp.in", "model.py:10")
    assert (op.flops, op.nbytes) == (9_180_000_000, 4_100_000)


def test_a_cpu_has_a_device_for_every_ordinal_and_the_steps_of_the_host(cpu: Trace) -> None:
    assert [device.name for device in cpu.devices] == ["CPU:0", "CPU:1"]
    for device in cpu.devices:
        assert [step.name for step in device.steps] == ["0", "1", "2"]
        assert {"matmul", "all-gather", "all-reduce"} <= {op.op_class for op in device.work.ops}
        assert {"mlp.in", "mlp.out (backward)"} <= {op.layer for op in device.work.ops}
        assert "train.py:11" in {op.line for op in device.work.ops}


def test_a_folder_is_searched_for_the_newest_trace(tpu_path: Path) -> None:
    assert find_traces(tpu_path.parents[3]) == [tpu_path]
    assert len(read_trace(tpu_path.parents[3]).devices) == 2


def test_the_hosts_of_a_folder_are_read_together(tmp_path: Path) -> None:
    """Host b has one step less, and what its host does is not what a's devices wait for."""
    (tmp_path / "a.xplane.pb").write_bytes(tpu_trace(devices=1))
    (tmp_path / "b.xplane.pb").write_bytes(tpu_trace(devices=1, steps=2, reads="other"))
    trace = read_trace(tmp_path)
    assert [(d.host, d.name) for d in trace.devices] == [
        ("a", "a /device:TPU:0"),
        ("b", "b /device:TPU:0"),
    ]
    found = profile(trace)
    alone = [step_table(read_trace(tmp_path / f"{host}.xplane.pb")) for host in "ab"]
    assert [(host, own.step_s) for host, own in found.hosts] == [
        ("a", alone[0].step_s),
        ("b", alone[1].step_s),
    ]
    gaps = {gap.doing: gap.seconds for gap in found.gaps}
    assert gaps["$data.py:3 next_batch"] * 5 == pytest.approx(2 * 10e-6, rel=1e-6)
    assert gaps["other"] * 5 == pytest.approx(10e-6, rel=1e-6)


def test_processes_of_a_run_are_its_hosts_and_other_folders_are_other_runs(tmp_path: Path) -> None:
    for name in ("process-0", "process-10", "process-2", "elsewhere"):
        path = tmp_path / name / "plugins" / "profile" / "run" / "vm.xplane.pb"
        path.parent.mkdir(parents=True)
        path.write_bytes(tpu_trace(devices=1))
    assert len(find_traces(tmp_path)) == 1
    shutil.rmtree(tmp_path / "elsewhere")
    hosts = [device.host for device in read_trace(tmp_path).devices]
    assert hosts == ["process-0", "process-2", "process-10"]


def test_ops_count_as_the_device_counted_them(tmp_path: Path) -> None:
    """The host's clock stretched one op and lost another; what flew is moved as ops were."""
    plane = PlaneWriter("/device:TPU:0")
    own = [(0, 10), (10, 10), (30, 10)]
    shown = [(5, 20), (25, 0), (35, 10)]
    events = [
        event(
            plane.kind(f"%op.{at} = x()"),
            begin * US,
            length * US,
            plane.stat("device_offset_ps", own[at][0] * US),
            plane.stat("device_duration_ps", own[at][1] * US),
        )
        for at, (begin, length) in enumerate(shown)
    ]
    plane.line("XLA Ops", events)
    plane.line("Steps", [event(plane.kind("s"), 5 * US, 40 * US)])
    plane.line("Async XLA Ops", [event(plane.kind("%copy-start = c()"), 5 * US, 30 * US)])
    path = tmp_path / "x.xplane.pb"
    path.write_bytes(space(plane))
    (device,) = read_trace(path).devices
    spans = zip(device.work.start_ps // US, device.work.stop_ps // US, strict=True)
    assert list(spans) == [(5, 15), (15, 25), (35, 45)]
    assert [(s.start_ps // US, s.stop_ps // US) for s in device.steps] == [(5, 45)]
    assert (device.flights.start_ps[0] // US, device.flights.stop_ps[0] // US) == (5, 35)


def test_planes_that_no_table_has_are_named(tmp_path: Path) -> None:
    planes = [PlaneWriter("/device:TPU:0"), PlaneWriter("/device:TPU:0 SparseCore 0")]
    for plane in planes:
        plane.line("XLA Ops", [event(plane.kind("%copy.1 = c()"), 0, US)])
    path = tmp_path / "x.xplane.pb"
    path.write_bytes(space(*planes, PlaneWriter("Task Environment")))
    trace = read_trace(path)
    assert trace.unread == ("/device:TPU:0 SparseCore 0",)
    assert "Left out are the events of /device:TPU:0 SparseCore 0" in "".join(
        profile_answer(profile(trace)).sentences
    )


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "cannot read"),
        (b"\x0a\x05abc", "is not a whole trace: 2 bytes too few at byte 5"),
        (b"not a trace at all", "is not a whole trace"),
        (space(PlaneWriter("/host:metadata")), "no ops of a device; it holds '/host:metadata'"),
    ],
)
def test_what_is_no_trace_is_said_in_a_sentence(content: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "x.xplane.pb"
    path.write_bytes(content)
    with pytest.raises(UsageError) as error:
        read_trace(path)
    assert said in str(error.value)
    assert "\n" not in str(error.value)
    assert error.value.hint


def test_ids_without_names_are_called_unnamed(tmp_path: Path) -> None:
    plane = PlaneWriter("/device:TPU:0")
    plane.line("XLA Ops", [event(99, 0, 10), event(98, 20, 10)])
    path = tmp_path / "x.xplane.pb"
    path.write_bytes(space(plane))
    (device,) = read_trace(path).devices
    assert [op.name for op in device.work.ops] == ["unnamed 98", "unnamed 99"]
    assert [step.name for step in device.steps] == ["all"]


@pytest.mark.parametrize(
    "times",
    [(0, -1), (-5, 1), (2**62, 1), (0, 2**62)],
)
def test_events_outside_any_trace_are_refused(times: tuple[int, int], tmp_path: Path) -> None:
    plane = PlaneWriter("/device:TPU:0")
    plane.line("XLA Ops", [event(plane.kind("a"), *times)])
    path = tmp_path / "x.xplane.pb"
    path.write_bytes(space(plane))
    with pytest.raises(ParseError, match="before the trace or 20 days after"):
        read_trace(path)


def test_lines_that_begin_at_different_times_share_one_clock(tmp_path: Path) -> None:
    plane = PlaneWriter("/device:TPU:0")
    plane.line("XLA Ops", [event(plane.kind("a"), 5_000, 10)], timestamp_ns=10**18)
    plane.line("Async XLA Ops", [event(plane.kind("b"), 0, 10)], timestamp_ns=10**18 + 7)
    path = tmp_path / "x.xplane.pb"
    path.write_bytes(space(plane))
    (device,) = read_trace(path).devices
    assert (device.work.start_ps[0], device.flights.start_ps[0]) == (5_000, 7_000)


def test_planes_whose_numbers_mean_other_words_keep_their_own(tmp_path: Path) -> None:
    planes = [PlaneWriter(f"/device:TPU:{core}") for core in range(3)]
    for plane, word in zip(planes, ("flops", "bytes_accessed", "flops"), strict=True):
        plane.line("XLA Ops", [event(plane.kind_of("%a = b", "a", {word: 7}), 0, 10)])
    assert planes[0].entries == planes[1].entries
    path = tmp_path / "words.xplane.pb"
    path.write_bytes(space(*planes))
    found = [plane.kind(1).stats for plane in planes_of(path)]
    assert found == [{"flops": 7}, {"bytes_accessed": 7}, {"flops": 7}]

"""Where the time went: rows that add up, roofs, overlap, gaps and differences, on known traces."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rooflight.errors import UnknownNameError
from rooflight.hardware.catalog import load_chip
from rooflight.measure.trace.overlap import HostGap, Overlap, host_gaps, overlaps
from rooflight.measure.trace.read import read_trace
from rooflight.measure.trace.record import Trace, under_roof
from rooflight.measure.trace.table import BY, By, StepTable, changes, step_table

from .tpu import US, tpu_trace
from .writer import PlaneWriter, event, space


def _seconds(table: StepTable) -> dict[str, float]:
    return {row.key: round(row.seconds * 1e6, 6) for row in table.rows}


def test_classes_have_the_time_that_is_their_own(tpu: Trace) -> None:
    found = _seconds(step_table(tpu, step="7"))
    assert found == {
        "matmul": 30,
        "vector": 20,
        "copy": 15,
        "all-gather": 11,
        "control": 10,  # the loop around the others keeps what they leave
        "idle": 14,
    }


def test_layers_lines_and_ops_are_rows_too(tpu: Trace) -> None:
    layers = _seconds(step_table(tpu, by="layer", step="7"))
    assert (layers["mlp.in"], layers["mlp.act (backward)"], layers["no scope"]) == (30, 20, 36)
    lines = _seconds(step_table(tpu, by="line", step="7"))
    assert (lines["model.py:10"], lines["model.py:12"]) == (30, 20)
    ops = _seconds(step_table(tpu, by="op", step="7"))
    assert (ops["while.1"], ops["all-gather-done.1"]) == (10, 10)


@pytest.mark.parametrize("by", BY)
@pytest.mark.parametrize("which", ["tpu", "cpu"])
def test_rows_add_up_to_the_step_and_to_each_step(
    which: str, by: By, tpu: Trace, cpu: Trace
) -> None:
    table = step_table(tpu if which == "tpu" else cpu, by=by)
    assert sum(row.seconds for row in table.rows) == pytest.approx(table.seconds, rel=1e-9)
    for at, seconds in enumerate(table.step_s):
        assert sum(row.by_step[at] for row in table.rows) == pytest.approx(seconds, rel=1e-9)


_SPANS = st.lists(
    st.tuples(st.integers(0, 200), st.integers(1, 40), st.integers(0, 3)), max_size=25
)


@settings(max_examples=60)
@given(_SPANS, st.lists(st.integers(1, 230), max_size=3, unique=True))
def test_ops_that_overlap_anyhow_still_add_up(
    tmp_path_factory: pytest.TempPathFactory, spans: list[tuple[int, int, int]], more: list[int]
) -> None:
    plane = PlaneWriter("/device:TPU:0")
    names = ("convolution", "all-reduce", "while", "copy")
    kinds = [plane.kind(f"%{name}.1 = x()", hlo_category=name) for name in names]
    plane.line("XLA Ops", [event(kinds[k], s * US, n * US) for s, n, k in [(0, 1, 0), *spans]])
    plane.line("Steps", [event(plane.kind(f"s{at}"), at * US, US) for at in (0, *more)])
    path = tmp_path_factory.mktemp("made") / "x.xplane.pb"
    path.write_bytes(space(plane))
    trace = read_trace(path)
    table = step_table(trace)
    assert sum(row.seconds for row in table.rows) == pytest.approx(table.seconds, rel=1e-9)
    for flown in overlaps(trace):
        assert 0 <= flown.hidden_s <= flown.in_flight_s * (1 + 1e-12)
    idle = table.seconds_of("idle")
    assert sum(gap.seconds for gap in host_gaps(trace)) == pytest.approx(idle, abs=1e-15)


def test_rates_are_held_against_the_roof_of_the_trace(tpu: Trace) -> None:
    rows = {row.key: row for row in step_table(tpu).rows}
    matmul, vector = rows["matmul"], rows["vector"]
    assert matmul.count == 2
    assert matmul.flops_per_s == pytest.approx(2 * 9.18e9 / 30e-6)
    assert matmul.of_roof == pytest.approx(2 * 9.18e9 / 918e12 / 30e-6)  # FLOPs bind
    assert vector.bytes_per_s == pytest.approx(2 * 8.2e6 / 20e-6)
    assert vector.of_roof == pytest.approx(2 * 8.2e6 / 1640e9 / 20e-6)  # bytes bind
    assert rows["all-gather"].of_roof is None
    assert rows["control"].flops == 0  # what is inside is counted there


def test_a_roof_that_nobody_named_is_unknown_and_can_be_given(cpu: Trace) -> None:
    matmul = step_table(cpu).rows[0]
    assert (matmul.key, matmul.of_roof) == ("matmul", None)
    v5e = load_chip("v5e")
    given_roof = step_table(under_roof(cpu, v5e)).rows[0].of_roof
    assert matmul.flops is not None and matmul.nbytes is not None and v5e.hbm_bytes_per_s
    flops_s, bytes_s = matmul.flops / v5e.flops["bf16"], matmul.nbytes / v5e.hbm_bytes_per_s
    assert given_roof == pytest.approx(max(flops_s, bytes_s) / matmul.seconds)


def test_flops_of_a_cpu_are_those_of_its_program(cpu: Trace) -> None:
    """Two layers, two matmuls, thrice each; 512 tokens over 2 devices, 512 x 1024 weights."""
    (matmul,) = [row for row in step_table(cpu).rows if row.key == "matmul"]
    assert matmul.flops == 2 * 2 * 3 * 2 * (512 / 2) * 512 * 1024


def test_collectives_are_hidden_where_something_computes(tpu: Trace) -> None:
    whole, gather = overlaps(tpu, step="8")
    assert (whole.kind, gather.kind) == ("all", "all-gather")
    assert [round(s * 1e6, 6) for s in _parts(gather)] == [66, 50, 16]


def _parts(flown: Overlap) -> Sequence[float]:
    return flown.in_flight_s, flown.hidden_s, flown.exposed_s


def test_a_trace_without_a_line_of_flights_pairs_starts_and_dones(
    tpu: Trace, tmp_path: Path
) -> None:
    path = tmp_path / "x.xplane.pb"
    path.write_bytes(tpu_trace(with_async=False))
    assert overlaps(read_trace(path)) == overlaps(tpu)


def test_the_host_is_asked_what_it_did_while_a_device_waited(tpu: Trace) -> None:
    found = host_gaps(tpu, step="7")
    assert [(gap.doing, round(gap.seconds * 1e6, 6), gap.count) for gap in found] == [
        ("$data.py:3 next_batch", 10, 1),
        ("train", 4, 1),
    ]


def test_idle_time_is_what_the_host_gaps_add_up_to(cpu: Trace) -> None:
    gaps: Sequence[HostGap] = host_gaps(cpu)
    idle = step_table(cpu).seconds_of("idle")
    assert sum(gap.seconds for gap in gaps) == pytest.approx(idle, rel=1e-9)
    assert "next batch" in {gap.doing for gap in gaps}


def test_a_difference_names_both_sides_and_the_largest_first(tpu: Trace) -> None:
    found = changes(step_table(tpu, step="7"), step_table(tpu, step="9"))
    first = found[0]
    assert first.key == "idle"
    assert (first.before_s, first.after_s) == pytest.approx((14e-6, 4e-6))
    assert sum(c.difference_s for c in found) == pytest.approx(-10e-6)


def test_an_unknown_step_has_a_did_you_mean(tpu: Trace) -> None:
    with pytest.raises(UnknownNameError, match="unknown step '77'"):
        step_table(tpu, step="77")

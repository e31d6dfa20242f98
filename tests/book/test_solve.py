"""Agreement within a tolerance, and the small language in which an entry names catalog facts."""

from dataclasses import replace

import pytest

from rooflight.book.entry import Entry, ExpectedValue, Value, entries
from rooflight.book.solve import agrees, look_up
from rooflight.hardware.catalog import load_chip
from rooflight.hardware.slice import parse_slice


@pytest.mark.parametrize(
    ("value", "truth", "tolerance", "expected"),
    [
        (1.0, 1.01, 0.02, True),
        (1.0, 1.03, 0.02, False),
        (1.0, 1.0 + 1e-12, 0.0, True),
        (1.0, 1.0 + 1e-6, 0.0, False),
        (0.0, 1e-12, 0.0, False),
        ((4, 4), (4, 4), 0.0, True),
        ((4, 2), (2, 2), 0.9, False),
        (True, True, 0.0, True),
        (1, True, 0.0, False),
    ],
)
def test_agreement_is_relative_and_exact_for_shapes_and_flags(
    value: Value, truth: Value, tolerance: float, expected: bool
) -> None:
    assert agrees(value, truth, tolerance) is expected


def _asks(*fact: str, truth: Value = 1.0) -> Entry:
    expected = ExpectedValue(unit="1", printed=None, later=None, truth=truth, fact=fact)
    return replace(entries()[0], expected={"value": expected})


def _found(*fact: str, truth: Value = 1.0) -> Value:
    return look_up(_asks(*fact, truth=truth)).values["value"]


def test_a_fact_is_read_from_the_catalog() -> None:
    v5p = load_chip("v5p")
    assert _found("v5p.hbm_bytes") == v5p.hbm_bytes
    assert _found("v5p.flops.bf16") == v5p.flops["bf16"]
    assert _found("v5p.torus.pod_shape", truth=(1,)) == (16, 20, 28)


def test_a_slice_has_properties_and_dims_by_name() -> None:
    spine = parse_slice("h100:8x128").dims[0]
    assert _found("h100:8x128.num_chips") == 1024
    assert _found("h100:8x128.dims.spine.size") == spine.size


def test_matmuls_go_before_sums_and_from_left_to_right() -> None:
    assert _found("7 + 2 * 3 / 4") == 8.5
    assert _found("8 / 2 / 2") == 2
    assert _found("v5e.torus.dims", "v5p.torus.dims", truth=(1,)) == (2, 3)


def test_each_fact_is_a_line_with_its_unit_and_source_once() -> None:
    lines = look_up(_asks("v5e.hbm_bytes * 2 / v5e.hbm_bytes")).lines
    assert [line.text for line in lines] == ["v5e.hbm_bytes [book]", "hbm_bytes * 2 / hbm_bytes"]
    assert lines[0].unit == "B"

"""What ships: constants with their physics and range, fitted to rows that ship too."""

import pytest

from rooflight.hardware.calibration import (
    Calibration,
    calibration_constants,
    calibration_text,
    load_calibration,
    shipped_calibrations,
)
from rooflight.measure.published.rows import shipped_rows

SHIPPED = [
    c for c in shipped_calibrations().values() if set(c.values) == set(calibration_constants())
]
_MATMULS = [name for name in calibration_constants() if name.startswith("matmul_")]


def test_a_run_depends_on_at_most_twelve_constants() -> None:
    assert len(calibration_constants()) - len(_MATMULS) + 1 <= 12


def test_every_constant_has_a_sentence_of_physics_and_a_range_that_physics_allows() -> None:
    for constant in calibration_constants().values():
        assert constant.physics.endswith(".") and len(constant.physics) > 60
        assert 0 <= constant.low < constant.typical < constant.high
        assert constant.is_time or constant.high == 1.0


@pytest.mark.parametrize("one", SHIPPED, ids=lambda c: f"{c.chip}-{c.engine}-{c.blocks}")
def test_a_shipped_calibration_is_in_range_and_says_where_it_is_from(one: Calibration) -> None:
    for name, constant in calibration_constants().items():
        assert constant.low * 0.999 <= one.values[name] <= constant.high
    assert one.rows >= 1 and one.made >= "2026-11-15" and one.spread > 0
    assert set(one.sources) <= set(shipped_rows().sources)


@pytest.mark.parametrize("chip", ("tpu_v5e", "tpu_v5p", "tpu_v6e", "tpu_v7x", "h100_sxm", "gb300"))
def test_chips_with_many_rows_have_a_calibration_of_their_own(chip: str) -> None:
    assert any(c.chip == chip for c in SHIPPED)


def test_the_nearest_calibration_answers() -> None:
    own = load_calibration("tpu_v5e", "tpu", "maxtext", "dense")
    other = load_calibration("tpu_v9", "tpu", "maxtext", "dense")
    stranger = load_calibration("tpu_v9", "tpu", "unheard-of", "dense")
    assert own and own.chip == "tpu_v5e"
    assert other and (other.chip, other.engine) == ("tpu", "maxtext")
    assert stranger and (stranger.chip, stranger.engine) == ("tpu", "any")
    assert load_calibration("cerebras", "wafer", "x", "dense") is None


def test_an_unknown_version_falls_back_to_its_engine() -> None:
    found = load_calibration("gb300", "gpu", "megatron@99.01", "dense")
    assert found and (found.chip, found.engine) == ("gb300", "megatron")


def test_an_interval_is_symmetric_in_the_log() -> None:
    low, high = SHIPPED[0].interval(2.0)
    assert low < 2.0 < high and low * high == pytest.approx(4.0)


def test_the_text_of_a_calibration_has_every_value() -> None:
    text = calibration_text([SHIPPED[0]])
    assert all(f"\n{name} = " in text for name in SHIPPED[0].values)

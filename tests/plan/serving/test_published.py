"""Measured steps lie above the lower bound, and rows of any engine are answered fast."""

from typing import Any

import pytest

from rooflight.models.presets import load_model
from rooflight.plan.serving.simulate.replay import replayed_model, slice_name
from rooflight.plan.serving.step.layout import parse_precision

from ...reference_loop import standard_s
from .published_decode import PublishedStep, published_steps


@pytest.mark.parametrize("row", published_steps(), ids=lambda row: f"batch{row.batch}")
def test_a_measured_step_takes_longer_than_the_lower_bound(row: PublishedStep) -> None:
    assert row.step.lower_s < row.measured_s


def test_the_published_steps_are_those_of_the_source() -> None:
    found = {row.batch: round(row.measured_s * 1e3, 2) for row in published_steps()}
    assert found == {8: 6.29, 32: 10.66, 64: 15.95, 128: 25.45}


ROWS = [
    ("llama3.1-70b", "h100", {"tp": 8}),
    ("llama3.1-70b", "a100", {"tp": 4, "pp": 2}),
    ("qwen3-32b", "b200", {"tp": 2}),
    ("deepseek-v3", "h200", {"tp": 8}),
    ("deepseek-v3", "h200", {"tp": 8, "ep": 8}),
    ("deepseek-v3", "gb200", {"tp": 1, "dp_attention": 32, "ep": 32}),
    ("deepseek-v3", "gb200", {"tp": 1, "dp_attention": 48, "ep": 16}),
    ("deepseek-v3", "b200", {"tp": 4, "dp_attention": 2, "ep": 4}),
    ("qwen3-235b-a22b", "h100", {"tp": 8, "ep": 8}),
    ("gpt-oss-120b", "b200", {"tp": 1}),
    ("gpt-oss-120b", "h100", {"tp": 2, "dp_attention": 4, "ep": 8}),
]


@pytest.mark.parametrize(("name", "chip", "ways"), ROWS)
def test_the_layouts_of_published_rows_are_answered(
    name: str, chip: str, ways: dict[str, Any]
) -> None:
    model, precision = load_model(name), parse_precision("int8/bf16/bf16")
    found = replayed_model(model, chip, precision=precision, **ways)
    step, first = found.generate([3000] * 33), found.prefill([3000])
    assert 0 < step.lower_s <= step.expected_s <= step.upper_s
    assert 0 < first.lower_s <= first.expected_s <= first.upper_s


def test_more_chips_of_a_kind_make_a_slice_of_whole_nodes() -> None:
    assert slice_name("h100", 32) == "h100:8x4"
    assert slice_name("v5p", 16) == "v5p:2x2x4"


def test_a_row_costs_less_than_a_millisecond_once_its_model_is_known() -> None:
    model = load_model("deepseek-v3")

    def ask(batches: int) -> None:
        for batch in range(1, batches + 1):
            replayed_model(model, "h200", tp=8, ep=8).generate([2048] * batch)

    ask(1)
    assert standard_s(lambda: ask(200)) / 200 < 1e-3

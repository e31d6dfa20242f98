"""The curve against the model it was boiled down from."""

from functools import lru_cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rooflight.hardware.slice import parse_slice
from rooflight.models.presets import load_model
from rooflight.plan.serving.simulate.load import Load, chunk_load, even_load
from rooflight.plan.serving.step.curve import StepCurve, step_curve
from rooflight.plan.serving.step.derive_model import serving_model
from rooflight.plan.serving.step.layout import parse_precision, parse_serving_layout
from rooflight.plan.serving.step.model import StepModel

CASES = (
    ("llama3-70b", "v5e:4x4", "tp=16,kv=batch", "int8"),
    ("llama3-70b", "v5e:4x4", "tp=4,cp=4", "int8/bf16/bf16"),
    ("deepseek-v3", "h100:8x4", "dp=32,ep=32", "fp8"),
    ("deepseek-v3", "h100:8", "tp=2,dp=2,pp=2,ep=4", "fp8"),
    ("gemma3-27b", "h100:2", "tp=2", "bf16"),
    ("gpt-oss-120b", "b200:4", "tp=4", "mxfp4/bf16/bf16"),
)


@lru_cache
def both(name: str, on: str, layout: str, dtypes: str) -> tuple[StepModel, StepCurve]:
    model = serving_model(
        load_model(name), parse_slice(on), parse_serving_layout(layout), parse_precision(dtypes)
    )
    return model, step_curve(model)


@settings(max_examples=200)
@given(
    st.sampled_from(CASES),
    st.integers(0, 300),
    st.integers(1, 20_000),
    st.integers(0, 5000),
    st.integers(0, 8000),
)
def test_a_curve_has_the_times_of_its_model(
    case: tuple[str, str, str, str], rows: int, context: int, tokens: int, before: int
) -> None:
    model, curve = both(*case)
    attended = tokens * (before + tokens) - tokens * (tokens - 1) // 2
    loads: list[Load] = [even_load(rows, rows * context, model.windows)] if rows else []
    loads += [chunk_load(tokens, attended, model.windows)] if tokens else []
    expected = model.step(loads).expected_s if loads else 0.0
    found = curve.seconds(
        decode_rows=rows,
        kv_tokens=rows * context,
        prefill_tokens=tokens,
        prefill_kv_tokens=attended,
    )
    assert found == pytest.approx(expected, rel=1e-12)

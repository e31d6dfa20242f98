"""The time of a training step: sums of its layers, bounds, and the roofs it cannot pass."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rooflight.dtypes import DTYPES
from rooflight.errors import ModelError
from rooflight.hardware.mesh import parse_mesh
from rooflight.models.graph.build import model_graph
from rooflight.models.layout.rules import parse_layout
from rooflight.models.presets import load_model
from rooflight.plan.training.time.stage_time import OVERLAPS
from rooflight.plan.training.time.step_time import StepTime, training_step

BF16 = DTYPES["bf16"]


def step(model: str, layout: str, *, on: str, mesh: str, batch: int, seq: int = 4096) -> StepTime:
    return training_step(
        model_graph(load_model(model)),
        parse_layout(layout),
        mesh=parse_mesh(mesh, on=on),
        batch=batch,
        seq=seq,
        dtype=BF16,
    )


@settings(max_examples=40)
@given(
    st.sampled_from(["llama3-8b", "mixtral-8x7b", "gemma2-9b", "deepseek-v2"]),
    st.sampled_from(["fsdp=X", "fsdp=X,sp=Y", "fsdp=X,tp=Y", "dp=X,mp=Y", "fsdp=X,cp=Y"]),
    st.sampled_from([16, 64, 256]),
)
def test_the_bounds_bracket_the_expectation_and_no_roof_is_passed(
    model: str, layout: str, batch: int
) -> None:
    mesh = "X=16,Y=4" if "Y" in layout else "X=16,Z=4"
    time = step(model, layout, on="v5p:4x4x4", mesh=mesh, batch=batch)
    for overlap in OVERLAPS:
        assert time.lower_s <= time.expected_s(overlap) <= time.upper_s
        assert 0 < time.mfu(overlap) <= 1 + 1e-9


def test_a_compute_bound_step_takes_its_flops_over_the_rate() -> None:
    time = step("llama3-70b", "fsdp=X", on="v5p:8x8x8", mesh="X=512", batch=512, seq=8192)
    assert time.binds() == "matmuls"
    assert time.expected_s() == pytest.approx(time.model_flops / time.peak_flops, rel=0.01)


def test_a_small_batch_is_bound_by_its_collectives() -> None:
    time = step("llama3-70b", "fsdp=X", on="v5p:8x8x8", mesh="X=512", batch=512, seq=64)
    assert time.binds() == "collectives over X"


def test_twice_the_batch_takes_twice_the_matmuls_and_the_same_weights() -> None:
    one = step("llama3-8b", "fsdp=X", on="v5p:4x4x4", mesh="X=64", batch=64)
    two = step("llama3-8b", "fsdp=X", on="v5p:4x4x4", mesh="X=64", batch=128)
    assert two.matmuls_s == pytest.approx(2 * one.matmuls_s, rel=0.01)
    assert two.axes_s["X"] == pytest.approx(one.axes_s["X"])


def test_an_axis_that_splits_nothing_repeats_the_work() -> None:
    idle = step("llama3-8b", "fsdp=X", on="v5p:4x4x4", mesh="X=16,Z=4", batch=64)
    used = step("llama3-8b", "fsdp=X", on="v5p:4x4x4", mesh="X=64", batch=64)
    assert idle.matmuls_s == pytest.approx(4 * used.matmuls_s, rel=0.01)
    assert idle.mfu() < 0.26


def test_matmuls_faster_than_their_flops_are_a_bug_of_ours() -> None:
    with pytest.raises(ModelError):
        StepTime(1.0, {}, {}, model_flops=3e14, peak_flops=2e14)


def test_slices_over_dcn_are_priced_on_their_own_axis() -> None:
    time = step(
        "llama3.1-405b",
        "dp=P,fsdp=X,sp=Y",
        on="8*v5p:16x16x16",
        mesh="P=8@dcn,X=512,Y=8",
        batch=8192,
        seq=8192,
    )
    assert set(time.axes_s) == {"P", "X", "Y"}
    assert time.waits_s["async"] > 0

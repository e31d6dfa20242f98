"""Ways as text, as mesh axes and as rules over them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rooflight.algebra.notation import parse_tensor
from rooflight.errors import ParseError, ShardingError, UnknownNameError
from rooflight.models.presets import load_model
from rooflight.models.spec import ModelSpec
from rooflight.plan.serving.step.layout import (
    KV_SPLITS,
    ServingLayout,
    mesh_axes,
    parse_serving_layout,
    rules,
)

LLAMA, DEEPSEEK = load_model("llama3-70b"), load_model("deepseek-v3")
WAYS = st.sampled_from([1, 2, 4, 8])


@given(WAYS, WAYS, WAYS, st.sampled_from(KV_SPLITS))
def test_a_layout_reads_back_what_it_writes(tp: int, pp: int, dp: int, kv: str) -> None:
    layout = ServingLayout(tp=tp, pp=pp, dp=dp, kv=next(k for k in KV_SPLITS if k == kv))
    assert parse_serving_layout(str(layout)) == layout


@given(WAYS, WAYS, WAYS, WAYS, st.sampled_from([LLAMA, DEEPSEEK]))
def test_the_axes_of_a_layout_multiply_to_its_chips(
    tp: int, pp: int, dp: int, ws: int, model: ModelSpec
) -> None:
    for ep in {1, dp, dp * tp}:
        layout = ServingLayout(tp=tp, pp=pp, dp=dp, ws=ws, ep=ep)
        assert math.prod(mesh_axes(layout, model).values()) == layout.num_chips


def test_tensor_parallelism_splits_kv_heads_first_and_query_heads_then() -> None:
    layout = ServingLayout(tp=16, kv="batch")
    assert mesh_axes(layout, LLAMA) == {"Z": 2, "Y": 8}
    found = rules(layout, LLAMA, "generate")
    assert str(found.of_weight(parse_tensor("W_q[D,K,G,H]"))) == "W_q[D,K_Y,G_Z,H]"
    assert str(found.of_cache(parse_tensor("k[B,S,K,H]"))) == "k[B_Z,S,K_Y,H]"
    by_position = rules(ServingLayout(tp=16, kv="sequence"), LLAMA, "generate")
    assert str(by_position.of_cache(parse_tensor("k[B,S,K,H]"))) == "k[B,S_Z,K_Y,H]"


def test_experts_take_the_axes_of_tokens_and_their_width_the_rest() -> None:
    layout = ServingLayout(tp=2, dp=4, ep=2)
    assert mesh_axes(layout, DEEPSEEK) == {"X": 2, "X2": 2, "Y": 2}
    found = rules(layout, DEEPSEEK, "generate")
    assert str(found.of_weight(parse_tensor("W_in[E,D,Fe]"))) == "W_in[E_X,D,Fe_X2Y]"
    assert str(found.of_activation(parse_tensor("x[B,T,D]"))) == "x[B_XX2,T,D]"


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("tq=4", UnknownNameError, "tq"),
        ("tp=four", ParseError, "not SCHEME=WAYS"),
        ("tp", ParseError, "not SCHEME=WAYS"),
        ("tp=0", ShardingError, "splits nothing"),
        ("kv=rows", UnknownNameError, "rows"),
        ("tp=4,ep=3", ShardingError, "cannot hold ep=3"),
    ],
)
def test_what_is_no_layout_is_refused(text: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        parse_serving_layout(text)

"""The choice of experts, against the rule written out token by token."""

import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("jax")

import jax
import jax.numpy as jnp

from rooflight.models.spec import Mlp, Moe
from rooflight.program.moe.routing import route

MODELS = {
    "Mixtral": Moe(8, 2, Mlp(4)),
    "Qwen3 without division": Moe(8, 3, Mlp(4), normalizes=False),
    "DeepSeek-V2": Moe(
        8, 2, Mlp(4), normalizes=False, scale=16.0, num_groups=4, groups_per_token=2
    ),
    "DeepSeek-V3": Moe(
        *(16, 4, Mlp(4)),
        scoring="sigmoid",
        scale=2.5,
        num_groups=4,
        groups_per_token=2,
        group_score="top2",
        has_choice_bias=True,
    ),
}
Floats = npt.NDArray[np.float32]


def one_token(moe: Moe, logits: list[float], bias: list[float]) -> dict[int, float]:
    """Weight by expert, in plain Python."""
    if moe.scoring == "sigmoid":
        scores = [1 / (1 + math.exp(-z)) for z in logits]
    else:
        total = sum(math.exp(z) for z in logits)
        scores = [math.exp(z) / total for z in logits]
    ranked = [s + b for s, b in zip(scores, bias, strict=True)]
    size = moe.num_experts // moe.num_groups
    groups = [range(g * size, (g + 1) * size) for g in range(moe.num_groups)]
    count = 2 if moe.group_score == "top2" else 1
    best = sorted(groups, key=lambda g: -sum(sorted((ranked[e] for e in g), reverse=True)[:count]))
    allowed = [e for group in best[: moe.groups_per_token] for e in group]
    chosen = sorted(allowed, key=lambda e: -ranked[e])[: moe.experts_per_token]
    total = sum(scores[e] for e in chosen) if moe.normalizes else 1.0
    return {e: moe.scale * scores[e] / total for e in chosen}


@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=20)
@given(seed=st.integers(0, 2**32 - 1))
def test_weights_and_experts_are_those_of_the_rule(name: str, seed: int) -> None:
    moe, rng = MODELS[name], np.random.default_rng(seed)
    logits = rng.normal(size=(5, moe.num_experts)).astype(np.float32)
    bias = rng.normal(size=moe.num_experts).astype(np.float32) if moe.has_choice_bias else None
    routed = route(
        moe, jnp.asarray(logits), choice_bias=None if bias is None else jnp.asarray(bias)
    )
    nothing: Floats = np.zeros(moe.num_experts, np.float32)
    for token, row in enumerate(logits):
        wanted = one_token(moe, row.tolist(), (nothing if bias is None else bias).tolist())
        pairs = zip(routed.experts[token].tolist(), routed.weights[token].tolist(), strict=True)
        assert dict(pairs) == pytest.approx(wanted, rel=1e-5)


def test_softmax_then_top_k_then_division_is_top_k_then_softmax() -> None:
    """What Mixtral writes one way and gpt-oss the other."""
    logits = np.random.default_rng(0).normal(size=(6, 8)).astype(np.float32)
    routed = route(MODELS["Mixtral"], jnp.asarray(logits))
    top = np.sort(logits, axis=-1)[:, :-3:-1]
    wanted = np.exp(top) / np.exp(top).sum(-1, keepdims=True)
    np.testing.assert_allclose(routed.weights, wanted, rtol=1e-5)


def test_the_bias_moves_the_choice_and_never_the_weight_of_what_is_chosen() -> None:
    moe = MODELS["DeepSeek-V3"]
    logits = jnp.zeros((1, 16))
    favoured = np.zeros(16, np.float32)
    favoured[[3, 7]] = 5.0
    routed = route(moe, logits, choice_bias=jnp.asarray(favoured))
    assert {3, 7} <= set(routed.experts[0].tolist())
    np.testing.assert_allclose(routed.weights[0], moe.scale / moe.experts_per_token, rtol=1e-6)


def test_the_bias_gets_no_gradient_and_the_scores_do() -> None:
    moe = MODELS["DeepSeek-V3"]
    rng = np.random.default_rng(1)
    logits, bias, mix = (rng.normal(size=s).astype(np.float32) for s in ((3, 16), 16, (3, 4)))

    def total(logits: jax.Array, bias: jax.Array) -> jax.Array:
        return (route(moe, logits, choice_bias=bias).weights * mix).sum()

    of_logits, of_bias = jax.grad(total, (0, 1))(logits, bias)
    assert np.abs(of_logits).max() > 0
    assert np.abs(of_bias).max() == 0

"""Which experts per token visits, and how much each counts.

    s[N,E] = softmax or sigmoid of the router's scores
    chosen = top k of s, or of s + bias where the model keeps one to balance its experts
    w[N,k] = s at the chosen; divided by their sum if the model normalises; times a scale

Softmax, then top k, then the division is the same as top k, then a softmax of those (Mixtral,
gpt-oss). Sigmoid with a bias and groups is DeepSeek-V3 (arXiv 2412.19437, section 2.1.2).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from rooflight.models.spec import Moe


class Routed(NamedTuple):
    """The choice of each token."""

    weights: jax.Array  # [N,k], float32
    experts: jax.Array  # [N,k], integers below E


def route(moe: Moe, logits: jax.Array, *, choice_bias: jax.Array | None = None) -> Routed:
    """From the router's scores [N,E] to k experts per token. The choice itself has no gradient."""
    logits = logits.astype(jnp.float32)
    scores = jax.nn.softmax(logits) if moe.scoring == "softmax" else jax.nn.sigmoid(logits)
    ranked = lax.stop_gradient(scores if choice_bias is None else scores + choice_bias)
    if moe.num_groups > 1:
        ranked = jnp.where(_in_best_groups(moe, ranked), ranked, -jnp.inf)
    _, experts = lax.top_k(ranked, moe.experts_per_token)
    weights = jnp.take_along_axis(scores, experts, -1)
    if moe.normalizes:
        weights = weights / weights.sum(-1, keepdims=True)
    return Routed(weights * moe.scale, experts)


def _in_best_groups(moe: Moe, ranked: jax.Array) -> jax.Array:
    """Which experts [N,E] are in the groups with the highest score: their best, or best two."""
    groups = ranked.reshape(-1, moe.num_groups, moe.num_experts // moe.num_groups)
    best, _ = lax.top_k(groups, 2 if moe.group_score == "top2" else 1)
    _, chosen = lax.top_k(best.sum(-1), moe.groups_per_token)
    is_open = jax.nn.one_hot(chosen, moe.num_groups, dtype=bool).any(-2)
    return jnp.repeat(is_open, groups.shape[-1], -1, total_repeat_length=moe.num_experts)

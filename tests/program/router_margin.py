"""How far the choices of a router are from a tie, while a program runs on one device.

Two devices add up a sum in another order, and a score that is last among the chosen by less than
that rounding may be first among the rest: the curves then part, and neither is wrong. Curves can be
compared only from weights whose choices are all clear.
"""

import contextlib
from collections.abc import Generator
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

import rooflight.program.model.experts as experts
from rooflight.models.spec import Moe
from rooflight.program.moe.routing import Routed, route


def margins(moe: Moe, ranked: jax.Array) -> list[jax.Array]:
    """By how much the last that is chosen leads: of the groups [N,groups], of the experts [N,E]."""
    found: list[jax.Array] = []
    if moe.num_groups > 1:
        groups = ranked.reshape(-1, moe.num_groups, moe.num_experts // moe.num_groups)
        best, _ = lax.top_k(groups, 2 if moe.group_score == "top2" else 1)
        score = best.sum(-1)
        found.append(_lead(score, moe.groups_per_token))
        lowest = lax.top_k(score, moe.groups_per_token)[0][:, -1:]
        is_open = jnp.repeat(score >= lowest, groups.shape[-1], -1)
        ranked = jnp.where(is_open, ranked, -jnp.inf)
    return [*found, _lead(ranked, moe.experts_per_token)]


def _lead(scores: jax.Array, count: int) -> jax.Array:
    top, _ = lax.top_k(scores, count + 1)
    return (top[:, -2] - top[:, -1]).min()


@contextlib.contextmanager
def watch() -> Generator[list[float]]:
    """The smallest margin of every layer that is run, as steps are traced and run inside."""
    found: list[float] = []

    def watched(moe: Moe, logits: jax.Array, *, choice_bias: Any = None) -> Routed:
        is_softmax = moe.scoring == "softmax"
        scores = jax.nn.softmax(logits) if is_softmax else jax.nn.sigmoid(logits)
        ranked = scores if choice_bias is None else scores + choice_bias
        jax.debug.callback(
            lambda *leads: found.append(float(min(leads))),
            *margins(moe, lax.stop_gradient(ranked)),
        )
        return route(moe, logits, choice_bias=choice_bias)

    setattr(experts, "route", watched)  # noqa: B010
    try:
        yield found
        jax.effects_barrier()
    finally:
        setattr(experts, "route", route)  # noqa: B010

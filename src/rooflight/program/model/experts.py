"""The routed half of a block: each token to a few experts, and back.

    m[B_X,T,D] * W_router[D,E] -> routed[B_X,T,E]
    sent[B_X,T,E,C] * m[B_X,T,D] -> sent_x[E,C_X,D]       each device sorts its own tokens
    AllToAll_{X,E} sent_x[E,C_X,D] -> sent_x[E_X,C,D]     where experts are split over X
    sent_x[E_X,C,D] * W_gate[E_X,D,Fe] -> gate[E_X,C,Fe]  and up, and down to fed_x
    AllToAll_{X,C} fed_x[E_X,C,D] -> fed_x[E,C_X,D]
    sent[B_X,T,E,C] * fed_x[E,C_X,D] -> fed[B_X,T,D]

C counts places: every device has as many for each expert, filled in the order of its tokens. A
token that finds them taken passes the expert by.
"""

import math

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec

from rooflight.algebra.notation import Tensor
from rooflight.models.spec import Mlp, Moe
from rooflight.program.matmuls import Scope
from rooflight.program.model.layers import activate
from rooflight.program.moe.all_to_all import assign_places
from rooflight.program.moe.routing import route
from rooflight.program.shardings import map_blocks, spec_of
from rooflight.program.vectors import scaled


def routed_mlp(scope: Scope, moe: Moe, m: jax.Array, *, capacity: float | None) -> jax.Array:
    """From m[B,T,D] to fed[B,T,D]: routed and shared experts.

    `capacity` is the number of places as a multiple of what balanced tokens would take; None is
    enough for any choice, so nothing is dropped.
    """
    logits = scope.matmul("router.scores", m)
    sent, places, weights = _send(scope, moe, m, logits, capacity)
    fed = _experts(scope, moe.expert, checkpoint_name(sent, "experts.dispatch"))
    fed = _bring_back(scope, fed, places, weights)
    return _with_shared(scope, moe, m, fed) if moe.shared else fed


def _token_place(scope: Scope) -> Tensor:
    """Tokens where they are routed: split as the stream is, and whole along D."""
    rule = scope.constraints.layout.stream
    return Tensor("m", ("B", "T", "D"), (rule.get("B", ()), rule.get("T", ()), ()))


def _routed_place(tokens: Tensor) -> Tensor:
    """What was routed, where it was routed: C has the axes of tokens, and E none."""
    return Tensor("sent_x", ("E", "C", "D"), ((), tokens.axes[0] + tokens.axes[1], ()))


def _send(
    scope: Scope, moe: Moe, m: jax.Array, logits: jax.Array, capacity: float | None
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """sent_x[E,C,D], and the places [B,T,k] and weights [B,T,k] of each token's choices."""
    tokens = _token_place(scope)
    row, routed = spec_of(tokens), spec_of(_routed_place(tokens))
    ways = math.prod(scope.constraints.axes[a] for a in tokens.sharded_over)
    size = num_places(moe, m.shape[0] * m.shape[1] // ways, capacity)

    def local(
        m: jax.Array, logits: jax.Array, bias: jax.Array | None
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        chosen = route(moe, logits.reshape(-1, moe.num_experts), choice_bias=bias)
        places = assign_places(chosen.experts, moe.num_experts, size)
        rows = jnp.repeat(m.reshape(-1, m.shape[-1]), moe.experts_per_token, axis=0)
        empty = jnp.zeros_like(m, shape=(moe.num_experts * size, m.shape[-1]))
        sent = empty.at[places.reshape(-1)].set(rows, mode="drop")
        by_token = (*m.shape[:2], moe.experts_per_token)
        return (
            sent.reshape(moe.num_experts, size, -1),
            places.reshape(by_token),
            chosen.weights.reshape(by_token).astype(m.dtype),
        )

    bias = scope.weights.get("router.B_choice")
    with jax.named_scope("experts.dispatch"):
        bias = None if bias is None else jax.reshard(bias, PartitionSpec(None))
        stages = scope.constraints.layout.stages
        run = map_blocks(local, (row, row, PartitionSpec(None)), (routed, row, row), stages=stages)
        return run(jax.reshard(m, row), jax.reshard(logits, row), bias)


def _bring_back(scope: Scope, fed: jax.Array, places: jax.Array, weights: jax.Array) -> jax.Array:
    """fed[B,T,D]: the weighted sum of what a token's experts computed."""
    tokens = _token_place(scope)
    row, routed = spec_of(tokens), spec_of(_routed_place(tokens))

    def local(fed: jax.Array, places: jax.Array, weights: jax.Array) -> jax.Array:
        rows = fed.reshape(-1, fed.shape[-1]).at[places].get(mode="fill", fill_value=0)
        return jnp.einsum("btkd,btk->btd", rows, weights)

    constraint = scope.constraints.ops.get(
        (scope.block, "experts.combine")
    )  # none where nothing moves
    result = scope.constraints.layout.of_activation(scope.ops["experts.combine"].contraction.result)
    with jax.named_scope("experts.combine"):
        fed = fed if constraint is None else scope.along(fed, constraint.operands[0])
        run = map_blocks(local, (routed, row, row), row, stages=scope.constraints.layout.stages)
        fed = run(jax.reshard(fed, routed), places, weights)
        return checkpoint_name(jax.reshard(fed, spec_of(result)), "experts.combine")


def num_places(moe: Moe, num_tokens: int, capacity: float | None) -> int:
    """Places for each expert on a device that has so many tokens.

    >>> moe = Moe(8, 2, Mlp(64))
    >>> num_places(moe, 1024, None), num_places(moe, 1024, 1.25)
    (1024, 320)
    """
    if capacity is None:
        return num_tokens
    balanced = num_tokens * moe.experts_per_token / moe.num_experts
    return min(num_tokens, max(1, math.ceil(balanced * capacity)))


def _experts(scope: Scope, expert: Mlp, sent: jax.Array) -> jax.Array:
    gate = scope.matmul("experts.gate", sent) if expert.is_gated else None
    up = scope.matmul("experts.in", sent)
    with jax.named_scope("experts.act"):
        hidden = checkpoint_name(activate(expert, gate, up), "experts.act")
    return scope.matmul("experts.out", hidden)


def _with_shared(scope: Scope, moe: Moe, m: jax.Array, fed: jax.Array) -> jax.Array:
    """The experts that every token visits, weighed by a gate of their own where there is one."""
    assert moe.shared
    gate = scope.matmul("shared.gate", m) if moe.shared.is_gated else None
    up = scope.matmul("shared.in", m)
    with jax.named_scope("shared.act"):
        hidden = checkpoint_name(activate(moe.shared, gate, up), "shared.act")
    fed_shared = scope.matmul("shared.out", hidden)
    if moe.has_shared_gate:
        logit = scaled(m, scope.beside("shared.W_shared_gate")).sum(-1, keepdims=True)
        fed_shared = jax.nn.sigmoid(logit) * fed_shared
    with jax.named_scope("shared.add"):
        return fed + fed_shared

"""Routed experts on one device, without dropping a token: sort, grouped matmuls, sort back.

    rows[N*k,D] = x[N,D], each token k times, sorted by expert
    up[N*k,F]   = rows[N*k,D] * W_up[E,D,F]      the rows of expert e times its own matrix
    fed[N,D]    = sum over k of w[N,k] * (hidden[N*k,F] * W_down[E,F,D], sorted back)

No array has a dim of E besides the weights: `lax.ragged_dot` runs over the rows as they lie. The
files for many devices (`moe_all_to_all`, `moe_ragged`) bring rows to where their expert is.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax

from rooflight.program.moe.routing import Routed

Activate: TypeAlias = Callable[[jax.Array | None, jax.Array], jax.Array]  # gate, up -> hidden


class Experts(NamedTuple):
    """The weights of the experts that a device holds."""

    up: jax.Array  # [E,D,F]
    down: jax.Array  # [E,F,D]
    gate: jax.Array | None = None  # [E,D,F]
    up_bias: jax.Array | None = None  # [E,F]
    down_bias: jax.Array | None = None  # [E,D]
    gate_bias: jax.Array | None = None  # [E,F]


def swiglu(gate: jax.Array | None, up: jax.Array) -> jax.Array:
    """silu(gate) * up; silu(up) where the experts have no gate."""
    return jax.nn.silu(up) if gate is None else jax.nn.silu(gate) * up


def moe_mlp(
    x: jax.Array,
    routed: Routed,
    experts: Experts,
    *,
    activate: Activate = swiglu,
    tensor_axis: str | None = None,
) -> jax.Array:
    """fed[N,D] of x[N,D]. Inside `shard_map` F may be split over `tensor_axis`: summed here."""
    with jax.named_scope("experts.dispatch"):
        order, sizes = sort_rows(routed.experts, experts.up.shape[0])
        rows = spread_rows(x, order, routed.experts.shape[1])
    fed = grouped_mlp(rows, sizes, experts, activate=activate, tensor_axis=tensor_axis)
    return sum_over(combine_rows(fed, order, routed.weights), tensor_axis)


def sort_rows(experts: jax.Array, num_experts: int) -> tuple[jax.Array, jax.Array]:
    """The choices [N*k] in the order of their experts, and how many each expert has [E]."""
    flat = experts.reshape(-1)
    return jnp.argsort(flat, stable=True), jnp.bincount(flat, length=num_experts).astype(jnp.int32)


def spread_rows(x: jax.Array, order: jax.Array, copies: int) -> jax.Array:
    """rows[N*k,D]: each token once for every choice, in the order of the choices."""
    return take_rows(jnp.repeat(x, copies, axis=0), order)


def combine_rows(fed: jax.Array, order: jax.Array, weights: jax.Array) -> jax.Array:
    """fed[N,D]: sorted back, and the weighted sum of what a token's experts made of it."""
    with jax.named_scope("experts.combine"):
        back = take_rows(fed, jnp.argsort(order)).reshape(*weights.shape, -1)
        return jnp.einsum("nkd,nk->nd", back, weights.astype(back.dtype))


def take_rows(rows: jax.Array, order: jax.Array) -> jax.Array:
    """A permutation of rows; said so, for a gradient without collisions."""
    return rows.at[order].get(unique_indices=True)


def grouped_mlp(
    rows: jax.Array,
    sizes: jax.Array,
    experts: Experts,
    *,
    activate: Activate,
    tensor_axis: str | None,
) -> jax.Array:
    """Rows [R,D] sorted by expert through the expert each belongs to; sizes[E] rows each."""
    own = jnp.arange(sizes.shape[0])

    def times(rows: jax.Array, weight: jax.Array) -> jax.Array:
        return lax.ragged_dot(rows, weight, sizes)

    def of_row(bias: jax.Array) -> jax.Array:
        return bias[jnp.repeat(own, sizes, total_repeat_length=rows.shape[0])]

    return expert_mlp(rows, experts, times, of_row, activate=activate, tensor_axis=tensor_axis)


def expert_mlp(
    rows: jax.Array,
    experts: Experts,
    times: Callable[[jax.Array, jax.Array], jax.Array],
    of_row: Callable[[jax.Array], jax.Array],
    *,
    activate: Activate,
    tensor_axis: str | None,
) -> jax.Array:
    """The layer itself, for any layout of rows: how they meet a weight, and a bias.

    With F split over `tensor_axis` the result is unreduced over it; one device adds the bias.
    """

    def matmul(name: str, x: jax.Array, weight: jax.Array, bias: jax.Array | None) -> jax.Array:
        with jax.named_scope(f"experts.{name}"):
            y = times(x, weight)
            return y if bias is None else y + of_row(bias)

    gate = None
    if experts.gate is not None:
        gate = matmul("gate", rows, experts.gate, experts.gate_bias)
    up = matmul("in", rows, experts.up, experts.up_bias)
    with jax.named_scope("experts.act"):
        hidden = activate(gate, up)
    bias = experts.down_bias
    if bias is not None and tensor_axis is not None:
        bias = jnp.where(lax.axis_index(tensor_axis) == 0, bias, 0)
    return matmul("out", hidden, experts.down, bias)


def sum_over(fed: jax.Array, axis: str | None) -> jax.Array:
    """The terms of a sum that is pending over an axis, if there is one."""
    return fed if axis is None else lax.psum(fed, axis)

"""Expert parallelism with a capacity: two all-to-alls of equal blocks, inside `shard_map`.

    x[N_X,D]         -> sent_x[E,C_X,D]      each device sorts its own tokens into C places
    AllToAll_{X,E}   -> sent_x[E_X,C,D]      to the device that holds the expert
    sent_x[E_X,C,D] * W_up[E_X,D,F] -> ... -> fed_x[E_X,C,D]
    AllToAll_{X,C}   -> fed_x[E,C_X,D]       and back
    fed[N_X,D] = sum over k of w[N_X,k] * fed_x at the token's places

A device holds E*C rows, and C is about N*k/(E*X): what it holds falls with the number of devices.
A choice that finds all places of its expert taken is dropped (first come, first served), and
counted. Without an axis the same function runs on one device, or wherever a compiler puts it.

On TPU an all-to-all stops the matmuls unless the compiler is handed `ASYNC` (libtpu 0.0.42).
"""

import jax
import jax.numpy as jnp
from jax import lax

from rooflight.program.moe.chunks import in_chunks
from rooflight.program.moe.layer import Activate, Experts, expert_mlp, sum_over, swiglu
from rooflight.program.moe.routing import Routed

ASYNC = {"xla_tpu_enable_async_all_to_all": "true"}  # for `compiler_options`, where chunks > 1


def moe_all_to_all(
    x: jax.Array,
    routed: Routed,
    experts: Experts,
    *,
    axis: str | None,
    capacity: int,
    chunks: int = 1,
    activate: Activate = swiglu,
    tensor_axis: str | None = None,
) -> tuple[jax.Array, jax.Array]:
    """fed[n,D] of the device's own tokens x[n,D], and the choices dropped on all devices of `axis`.

    Args:
        experts: those of this device, E/X of them, F perhaps split over `tensor_axis`.
        capacity: places C for each expert on each device, of each chunk.
        chunks: pieces that the tokens are sent in; the exchange of one hides behind the matmuls
            of the other.
    """
    ways = 1 if axis is None else lax.axis_size(axis)
    num_experts = experts.up.shape[0] * ways

    def send(x: jax.Array, chosen: jax.Array, weights: jax.Array) -> tuple[jax.Array, ...]:
        with jax.named_scope("experts.dispatch"):
            places = assign_places(chosen, num_experts, capacity)
            rows = jnp.repeat(x, chosen.shape[1], axis=0)
            empty = jnp.zeros_like(x, shape=(num_experts * capacity, x.shape[1]))
            sent = empty.at[places.reshape(-1)].set(rows, mode="drop")
            return swap(sent, ways, axis), places, weights

    def use(sent: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        rows, places, weights = sent
        blocks = rows.reshape(ways, -1, capacity, rows.shape[-1])
        fed = expert_mlp(
            *(blocks, experts, _times, _of_row), activate=activate, tensor_axis=tensor_axis
        )
        with jax.named_scope("experts.combine"):
            fed = swap(fed.reshape(rows.shape), ways, axis)
            back = fed.at[places].get(mode="fill", fill_value=0)
            taken = jnp.einsum("nkd,nk->nd", back, weights.astype(back.dtype))
            return taken, (places == num_experts * capacity).sum(dtype=jnp.int32)

    fed, dropped = in_chunks(chunks, (x, routed.experts, routed.weights), send, use)
    return sum_over(fed, tensor_axis), sum_over(dropped.sum(), axis)


def assign_places(experts: jax.Array, num_experts: int, capacity: int) -> jax.Array:
    """The place [n,k] of each choice among E*C; E*C, which is none, if its expert is full."""
    flat = experts.reshape(-1)
    order = jnp.argsort(flat, stable=True)
    sizes = jnp.bincount(flat, length=num_experts)
    starts = jnp.cumsum(sizes) - sizes
    rank = jnp.arange(flat.shape[0]) - starts[flat[order]]  # among the choices of one expert
    place = jnp.where(rank < capacity, flat[order] * capacity + rank, num_experts * capacity)
    return place[jnp.argsort(order)].reshape(experts.shape)


def swap(rows: jax.Array, ways: int, axis: str | None) -> jax.Array:
    """Block i of this device to device i, which puts it at this device's place; its own inverse."""
    if axis is None:
        return rows
    blocks = rows.reshape(ways, -1, rows.shape[-1])
    return lax.all_to_all(blocks, axis, split_axis=0, concat_axis=0, tiled=True).reshape(rows.shape)


def _times(blocks: jax.Array, weight: jax.Array) -> jax.Array:
    return jnp.einsum("secd,edf->secf", blocks, weight)


def _of_row(bias: jax.Array) -> jax.Array:
    return bias[:, None, :]

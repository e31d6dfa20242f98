"""Expert parallelism without capacity: each device sends every expert's device all its rows.

    x[N_X,D] -> rows[N_X*k,D]          sorted by expert, hence by the device that holds it
    RaggedAllToAll_X rows -> got[R,D]  as many rows as there are; R = N*k holds the worst case
    got[R,D] * W_up[E_X,D,F] -> ... -> fed[R,D]      grouped matmuls, as on one device
    RaggedAllToAll_X fed -> fed[N_X*k,D] -> fed[N_X,D]

Nothing is dropped, so a buffer must hold what happens if all tokens choose the experts of one
device: R rows. Sent in `chunks` pieces it is R/chunks; what travels is only what there is.
"""

import jax
import jax.numpy as jnp
from jax import lax

from rooflight.program.moe.chunks import in_chunks
from rooflight.program.moe.layer import (
    Activate,
    Experts,
    combine_rows,
    grouped_mlp,
    sort_rows,
    spread_rows,
    sum_over,
    swiglu,
    take_rows,
)
from rooflight.program.moe.routing import Routed
from rooflight.program.varying import align


def moe_ragged(
    x: jax.Array,
    routed: Routed,
    experts: Experts,
    *,
    axis: str,
    chunks: int = 1,
    activate: Activate = swiglu,
    tensor_axis: str | None = None,
) -> jax.Array:
    """fed[n,D] of the device's own tokens x[n,D]; `experts` are the E/X of this device."""
    ways, local = lax.axis_size(axis), experts.up.shape[0]

    def send(x: jax.Array, chosen: jax.Array, weights: jax.Array) -> tuple[jax.Array, ...]:
        with jax.named_scope("experts.dispatch"):
            order, sizes = sort_rows(chosen, ways * local)
            rows = spread_rows(x, order, chosen.shape[1])
            counts = lax.all_to_all(sizes.reshape(ways, local), axis, 0, 0, tiled=True)
            to_each = sizes.reshape(ways, local).sum(1)
            got = exchange(rows, to_each, axis=axis, bound=ways * rows.shape[0])
            return got, counts, order, weights

    def use(sent: tuple[jax.Array, ...]) -> jax.Array:
        got, counts, order, weights = sent
        by_expert = group_by_expert(counts, got.shape[0])
        fed = grouped_mlp(
            *(take_rows(got, by_expert), counts.sum(0), experts),
            activate=activate,
            tensor_axis=tensor_axis,
        )
        with jax.named_scope("experts.combine"):
            fed = take_rows(fed, jnp.argsort(by_expert))
            back = exchange(fed, counts.sum(1), axis=axis, bound=order.shape[0])
        return combine_rows(back, order, weights)

    tokens = (x, routed.experts, routed.weights)
    return sum_over(in_chunks(chunks, tokens, send, use), tensor_axis)


def group_by_expert(counts: jax.Array, num_rows: int) -> jax.Array:
    """The order of received rows by expert; counts[source,expert] of them, in that order.

    Rows behind the last received one stay behind.
    """
    ways, local = counts.shape
    ids = jnp.tile(jnp.arange(local), ways)
    of_row = jnp.repeat(ids, counts.reshape(-1), total_repeat_length=num_rows)
    is_padding = jnp.arange(num_rows) >= counts.sum()
    return jnp.argsort(jnp.where(is_padding, local, of_row), stable=True)


# Rows to other devices, as many to each as there are: `lax.ragged_all_to_all`.


def exchange(rows: jax.Array, sizes: jax.Array, *, axis: str, bound: int) -> jax.Array:
    """The rows [bound,D] that all devices of `axis` have for this one; sizes[i] go to device i."""
    table = lax.all_gather(sizes, axis)  # [source, destination]
    got = jnp.zeros_like(rows, shape=(bound, rows.shape[1]))
    rows, got, table, sizes = align((rows, got, table, sizes))
    return lax.platform_dependent(
        *(rows, got, table, sizes),
        cpu=lambda *operands: _gathered(*operands, axis=axis),
        default=lambda *operands: _ragged(*operands, axis=axis),
    )


def _ragged(
    rows: jax.Array, got: jax.Array, table: jax.Array, sizes: jax.Array, *, axis: str
) -> jax.Array:
    me = lax.axis_index(axis)
    starts = jnp.cumsum(sizes) - sizes
    places = (jnp.cumsum(table, 0) - table)[me]  # where this device's rows begin on each other one
    return lax.ragged_all_to_all(rows, got, starts, sizes, places, table[:, me], axis_name=axis)


def _gathered(
    rows: jax.Array, got: jax.Array, table: jax.Array, _: jax.Array, *, axis: str
) -> jax.Array:
    """Row r of the result is row r - (those of earlier sources) of what its source has for me."""
    me = lax.axis_index(axis)
    arrived = table[:, me]
    ends = jnp.cumsum(arrived)
    place = jnp.arange(got.shape[0])
    source = jnp.searchsorted(ends, place, side="right").clip(max=table.shape[0] - 1)
    starts = (jnp.cumsum(table, 1) - table)[:, me]  # where each source keeps what is mine
    at = starts[source] + place - (ends - arrived)[source]
    everyone = lax.all_gather(rows, axis)
    taken = everyone.at[source, at].get(mode="clip")
    return jnp.where((place < ends[-1])[:, None], taken, got)

"""Rows to other devices, as many to each as there are: `lax.ragged_all_to_all`.

    RaggedAllToAll_X rows[n,D], sizes[X] -> got[R,D]

Rows lie in the order of their destination, and arrive in the order of their source. XLA's CPU
backend does not run the op, so there a gather of all rows takes its place: same arguments, same
result, bit for bit, zeros behind the last row included.
"""

import jax
import jax.numpy as jnp
from jax import lax

from rooflight.program.varying import align


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

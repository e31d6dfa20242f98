"""One device's part of a paged cache: entries into its blocks, and attention to what they hold.

    pages[L,N,S,...] of a layer, ids[B,P] of each row's blocks as the device counts its own
    write at (layer, ids[p // S], p % S);  read all P S positions;  attend to those that are there

Where the blocks of a row are spread over axes Z each device attends to its own, and the states of
all are merged: AllReduce_Z of a max and of a sum for each query, then of its part of the result,
or ReduceScatter_Z where the query heads of a kv head go on split over Z.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike

from rooflight.algebra.notation import Axes
from rooflight.program.attention.chunks import ABSENT, forward
from rooflight.program.attention.tile import How, Keys, Queries, TileState, finish, merge_over
from rooflight.program.decode.cache import SCALE, local_ids, stored_parts
from rooflight.program.varying import align

Pages = dict[str, jax.Array]  # of one block of a pattern, all its layers


class PagedBatch(NamedTuple):
    """Where the tokens of a call are: row b has positions from starts[b] on, lengths[b] of them."""

    starts: jax.Array  # [B]
    lengths: jax.Array  # [B], at most T; 0 is a row without a sequence
    tables: jax.Array  # [B,P], ids of blocks

    def positions(self, num_tokens: int) -> jax.Array:
        """[B,T], those of padding counted on."""
        return self.starts[:, None] + jnp.arange(num_tokens)


class Blocks(NamedTuple):
    """The blocks of some rows on a device; an id of `num_blocks` is a block of another device."""

    rows: PagedBatch
    ids: jax.Array  # [B,P]
    layer: jax.Array
    num_blocks: int
    size: int


def own_blocks(pages: Pages, layer: jax.Array, rows: PagedBatch, axes: Axes) -> Blocks:
    """Finds a device's own among the blocks of its rows, which are split over `axes`."""
    _, num_blocks, size, *_ = next(iter(pages.values())).shape
    return Blocks(rows, local_ids(rows.tables, num_blocks, axes), layer, num_blocks, size)


def write(pages: Pages, new: Pages, to: Blocks) -> Pages:
    """New entries [B,T,...] at the positions of their rows; padding goes nowhere."""
    num_tokens = next(iter(new.values())).shape[1]
    at, absent = to.rows.positions(num_tokens), to.num_blocks
    block = jnp.take_along_axis(to.ids, at // to.size, 1, mode="fill", fill_value=absent)
    is_real = jnp.arange(num_tokens) < to.rows.lengths[:, None]
    block = jnp.where(is_real, block, absent)
    found: Pages = {}
    for name, values in new.items():
        for part, stored in stored_parts(pages, name, values).items():
            found[part] = pages[part].at[to.layer, block, at % to.size].set(stored, mode="drop")
    return found


def read(pages: Pages, name: str, of: Blocks, dtype: DTypeLike) -> jax.Array:
    """Every entry [B,P*S,...] of each row's blocks, anything where a block is not here."""

    def gathered(part: str) -> jax.Array:
        # Or the compiler would turn all pages, to have what is gathered the way it likes it.
        found = lax.optimization_barrier(pages[part].at[of.layer, of.ids].get(mode="clip"))
        return found.reshape(found.shape[0], -1, *found.shape[3:]).astype(dtype)

    scale = name + SCALE
    return gathered(name) * gathered(scale) if scale in pages else gathered(name)


def attend_blocks(
    q: jax.Array,
    kv: tuple[jax.Array, jax.Array],
    sinks: jax.Array | None,
    blocks: Blocks,
    how: How,
    *,
    spread: Axes,
    is_scattered: bool = False,
) -> jax.Array:
    """Attention of q[B,T,K,G,H] to keys and values [B,P*S,K,..], merged over the axes `spread`.

    `is_scattered` leaves each device of them its part of the groups G.
    """
    rows = blocks.rows
    at = jnp.arange(kv[0].shape[1])
    is_here = jnp.repeat(blocks.ids < blocks.num_blocks, blocks.size, 1)
    is_here &= at < (rows.starts + rows.lengths)[:, None]
    k_at = jnp.where(is_here, at, ABSENT)
    aligned = align((Queries(q, rows.positions(q.shape[1])), Keys(*kv, k_at)))
    return merged(forward(*aligned, how), sinks, q.dtype, spread=spread, is_scattered=is_scattered)


def merged(
    state: TileState,
    sinks: jax.Array | None,
    dtype: DTypeLike,
    *,
    spread: Axes,
    is_scattered: bool = False,
) -> jax.Array:
    """What the states of all devices along `spread` give, or each device's part of the groups."""
    state = merge_over(state, spread) if spread else state
    out = finish(state, sinks)[0].astype(dtype)
    if is_scattered:
        return lax.psum_scatter(out, spread, scatter_dimension=3, tiled=True)
    return lax.psum(out, spread) if spread else out

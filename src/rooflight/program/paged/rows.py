"""Attention to a paged cache row by row: each row loops over the blocks that it has, and no more.

    for each row b: for each block p of those that its queries see:
        state = merge of the state with that of q_b over load(ids[b,p])

One block of keys and values lives at a time. How many blocks a row has is only known when it runs,
so one compiled function serves rows of any length.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike

from rooflight.program.attention.chunks import ABSENT
from rooflight.program.attention.tile import How, TileState, visible
from rooflight.program.decode.cache import SCALE
from rooflight.program.model.layers import softcapped
from rooflight.program.paged.blocks import Blocks, Pages
from rooflight.program.varying import align

LOWEST = -1e30  # a max of no keys that may be subtracted from itself
# The id of a block -> its keys [S,K,H] and values [S,K,Hv].
Load = Callable[[Pages, jax.Array], tuple[jax.Array, jax.Array]]
Row = tuple[jax.Array, jax.Array, jax.Array, jax.Array]  # q[T,K,G,H], ids[P], start and length


def attend_by_row(q: jax.Array, pages: Pages, blocks: Blocks, how: How, load: Load) -> TileState:
    """The state of q[B,T,K,G,H] over the blocks of each row, which `load` reads."""
    rows = blocks.rows
    each, pages = align(((q * how.scale, blocks.ids, rows.starts, rows.lengths), pages))

    def of_row(row: Row) -> TileState:
        q, ids, start, length = row
        end = start + length
        by_head = q.swapaxes(0, 1).reshape(q.shape[1], -1, q.shape[-1])  # [K,TG,H]
        q_at = jnp.repeat(start + jnp.arange(q.shape[0]), q.shape[2])

        def over_block(at: jax.Array, state: TileState) -> TileState:
            keys, values = load(pages, ids[at])
            k_at = at * blocks.size + jnp.arange(blocks.size)
            k_at = jnp.where((ids[at] < blocks.num_blocks) & (k_at < end), k_at, ABSENT)
            seen = visible(q_at[None], k_at[None], how)
            return _more(state, by_head, keys, values, seen, how.softcap)

        window = how.mask.window
        first = start * 0 if window is None else jnp.maximum(start - window + 1, 0) // blocks.size
        last = -(-end // blocks.size)
        state = lax.fori_loop(first, last, over_block, _empty(by_head, load(pages, ids[0])[1]))
        return TileState(*(_by_query(part, q.shape[0]) for part in state))

    return lax.map(of_row, each)


def _empty(q: jax.Array, values: jax.Array) -> TileState:
    """The state of q[K,M,H] over no keys, of the types that q and values give it."""
    zero = q[..., 0] * 0
    return TileState(zero + LOWEST, zero, zero[..., None] + values[0][:, None] * 0)


def _more(
    state: TileState,
    q: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    seen: jax.Array,
    softcap: float | None,
) -> TileState:
    """The state of q[K,M,H] over one more block of keys and values [S,K,..].

    As few operations as there can be: on a CPU each costs as much as the numbers of a block.
    """
    s = jnp.einsum("kmh,skh->kms", q, keys, preferred_element_type=jnp.float32)
    s = jnp.where(seen, softcapped(s, softcap), -jnp.inf)
    top = jnp.maximum(state.max, s.max(-1))
    p, keep = jnp.exp(s - top[..., None]), jnp.exp(state.max - top)
    out = jnp.einsum("kms,skh->kmh", p, values, preferred_element_type=jnp.float32)
    return TileState(top, state.sum * keep + p.sum(-1), state.out * keep[..., None] + out)


def _by_query(part: jax.Array, num_tokens: int) -> jax.Array:
    """[K,TG,..] -> [T,K,G,..]."""
    return part.reshape(part.shape[0], num_tokens, -1, *part.shape[2:]).swapaxes(0, 1)


def read_block(
    pages: Pages, name: str, layer: jax.Array, block: jax.Array, dtype: DTypeLike
) -> jax.Array:
    """One block [S,...] of a layer; anything where it is not here."""

    def sliced(part: str) -> jax.Array:
        stored = pages[part]
        start = (layer, block, *(0,) * (stored.ndim - 2))
        return lax.dynamic_slice(stored, start, (1, 1, *stored.shape[2:]))[0, 0].astype(dtype)

    scale = name + SCALE
    return sliced(name) * sliced(scale) if scale in pages else sliced(name)

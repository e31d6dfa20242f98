"""Attention over tiles of a sequence, with its own backward pass.

    q[B,T,K,G,H], k[B,S,K,H], v[B,S,K,Hv] -> out[B,T,K,G,Hv]
    for each tile i of T: state = merge over each tile j of S of tile(q_i, k_j, v_j)
    save q, k, v, out, lse[B,T,K,G]; delta = rowsum(dO * O)
    for each tile j of S: for each tile i of T: dq_i += .., dk_j += .., dv_j += ..

One tile [chunk, chunk] of scores lives at a time, so both passes hold memory linear in T and S.
A tile in which no query sees a key is skipped: causal attention does half the work. Where `How` has
a block, the kernel for TPUs does the same (`splash`).
"""

from functools import partial
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from rooflight.program.attention import splash
from rooflight.program.attention.tile import (
    KEPT,
    How,
    Keys,
    Queries,
    TileState,
    finish,
    merge,
    nothing,
    sinks_gradient,
    tile,
    tile_gradients,
    visible,
)

Triple = tuple[jax.Array, jax.Array, jax.Array]  # q, k and v, or their gradients
Positions = tuple[jax.Array, jax.Array]  # of queries [b,T] and of keys [b,S]
Saved = tuple[Triple, jax.Array | None, Positions, jax.Array, jax.Array]  # ..., out, lse
Side = TypeVar("Side", Queries, Keys)
ABSENT = -1  # the position of padding


def forward(queries: Queries, keys: Keys, how: How) -> TileState:
    """The state of all queries over the given keys."""
    if how.block:
        return splash.forward(queries, keys, how)
    queries, keys = _kept_here(queries, keys)
    if max(queries.q.shape[1], keys.k.shape[1]) <= how.chunk:  # no loop to keep operands in memory
        seen = visible(queries.at, keys.at, how)
        return merge(nothing(queries.q, keys.v), tile(queries, keys, seen, how))
    key_tiles = _cut(keys, how.chunk)

    def of_queries(_: None, some: Queries) -> tuple[None, TileState]:
        def over_keys(state: TileState, other: Keys) -> tuple[TileState, None]:
            seen = visible(some.at, other.at, how)

            def met() -> TileState:
                return merge(state, tile(some, other, seen, how))

            def unmet() -> TileState:
                return state

            return lax.cond(jnp.any(seen), met, unmet), None

        return None, lax.scan(over_keys, nothing(some.q, keys.v), key_tiles)[0]

    states = lax.scan(of_queries, None, _cut(queries, how.chunk))[1]
    return TileState(*(_join(x, queries.q.shape[1]) for x in states))


def backward(queries: Queries, keys: Keys, how: How) -> Triple:
    """Triple of q, k and v in fp32; the queries come with dO, lse and delta."""
    if how.block:
        return splash.backward(queries, keys, how)
    queries, keys = _kept_here(queries, keys)
    query_tiles = _cut(queries, how.chunk)

    def of_keys(dq: jax.Array, some: Keys) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        def over_queries(
            sums: tuple[jax.Array, jax.Array], other: Queries
        ) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
            seen = visible(other.at, some.at, how)

            def met() -> Triple:
                return tile_gradients(other, some, seen, how)

            def unmet() -> Triple:
                return zeros_of(other.q), zeros_of(some.k), zeros_of(some.v)

            dq_i, dk_i, dv_i = lax.cond(jnp.any(seen), met, unmet)
            return (sums[0] + dk_i, sums[1] + dv_i), dq_i

        sums, more = lax.scan(over_queries, (zeros_of(some.k), zeros_of(some.v)), query_tiles)
        return dq + more, sums

    dq, (dk, dv) = lax.scan(of_keys, zeros_of(query_tiles.q), _cut(keys, how.chunk))
    length = keys.k.shape[1]
    return _join(dq, queries.q.shape[1]), _join(dk, length), _join(dv, length)


def _kept_here(queries: Queries, keys: Keys) -> tuple[Queries, Keys]:
    """Both, with positions that seem to depend on the queries.

    Masks follow from positions alone, which are the same in every layer: differentiating a scan
    over layers would make the masks of all tiles once, ahead of it, as large as all scores.
    """
    q_at, k_at, _ = lax.optimization_barrier((queries.at, keys.at, queries.q))
    return queries._replace(at=q_at), keys._replace(at=k_at)


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def attend_chunks(qkv: Triple, sinks: jax.Array | None, at: Positions, how: How) -> jax.Array:
    """Attention of arrays that all vary over the same mesh axes."""
    return _attend(qkv, sinks, at, how)[0]


def _attend(
    qkv: Triple, sinks: jax.Array | None, at: Positions, how: How
) -> tuple[jax.Array, Saved]:
    (q, k, v), (q_at, k_at) = qkv, at
    out, lse = finish(forward(Queries(q, q_at), Keys(k, v, k_at), how), sinks)
    out, lse = checkpoint_name((out.astype(q.dtype), lse), KEPT)
    return out, (qkv, sinks, at, out, lse)


def _attend_gradients(
    how: How, saved: Saved, d_out: jax.Array
) -> tuple[Triple, jax.Array | None, None]:
    (q, k, v), sinks, (q_at, k_at), out, lse = saved
    delta = row_sums(d_out, out)
    dq, dk, dv = backward(Queries(q, q_at, d_out, lse, delta), Keys(k, v, k_at), how)
    dsinks = None if sinks is None else sinks_gradient(sinks, lse, delta)
    return (dq.astype(q.dtype), dk.astype(k.dtype), dv.astype(v.dtype)), dsinks, None


attend_chunks.defvjp(_attend, _attend_gradients)


def row_sums(d_out: jax.Array, out: jax.Array) -> jax.Array:
    """delta = rowsum(dO * O), in fp32."""
    return (d_out.astype(jnp.float32) * out.astype(jnp.float32)).sum(-1)


def _cut(side: Side, chunk: int) -> Side:
    """Every array as [tiles, B, tile, ...], padded with absent positions."""
    length = side.at.shape[1]
    tiles = -(-length // chunk)
    size = -(-length // tiles)  # of nearly equal tiles: little padding

    def cut(x: jax.Array) -> jax.Array:
        pads = [(0, 0)] * x.ndim
        pads[1] = (0, tiles * size - length)
        fill = ABSENT if x is side.at else 0
        x = jnp.pad(x, pads, constant_values=fill) if pads[1][1] else x
        return jnp.moveaxis(x.reshape(x.shape[0], tiles, size, *x.shape[2:]), 1, 0)

    return jax.tree.map(cut, side)


def _join(tiles: jax.Array, length: int) -> jax.Array:
    whole = jnp.moveaxis(tiles, 0, 1)
    return whole.reshape(whole.shape[0], -1, *whole.shape[3:])[:, :length]


def zeros_of(like: jax.Array) -> jax.Array:
    """Where a sum in fp32 begins."""
    return jnp.zeros_like(like, dtype=jnp.float32)

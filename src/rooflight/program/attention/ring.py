"""Ring attention: positions split over an axis, keys and values rotate. Called inside `shard_map`.

    q[B,T_X,K,G,H], k[B,T_X,K,H], v[B,T_X,K,Hv] -> out[B,T_X,K,G,Hv],  X of n devices
    n times: state = merge(state, tile(q, k, v));  k, v = Permute_X(k, v)
    backward, n times: dk, dv = Permute_X(dk, dv);  dq, dk, dv += tile_gradients(q, k, v, ...)
                       k, v = Permute_X(k, v)

No permute of a round needs what its tile computes, so they overlap: dk and dv leave with the sums
of the rounds before, and meet their keys one device further on. They are home after n shifts, the
last one alone; nothing is saved but the local q, k, v, out and lse.
`ring_order` says which positions a device holds, and why causal rings want the order zigzag.
"""

from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from rooflight.algebra.notation import Axes
from rooflight.errors import ShardingError
from rooflight.program.attention import chunks
from rooflight.program.attention import tile as tiles
from rooflight.program.attention.chunks import Triple
from rooflight.program.attention.ring_order import Order, ring_positions
from rooflight.program.attention.splash import block_of
from rooflight.program.attention.tile import KEPT, How, Keys, Queries, TileState
from rooflight.program.varying import align

Pair = tuple[jax.Array, jax.Array]  # keys and values, or their gradients
Saved = tuple[Triple, jax.Array | None, jax.Array, jax.Array]


@dataclass(frozen=True, slots=True)
class RingAxis:
    """The axis around which keys rotate, the order of positions along it, and what is computed."""

    axis: str | Axes
    order: Order
    how: How

    @property
    def size(self) -> int:
        return lax.axis_size(self.axis)


def ring_attend(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    axis: str | Axes,
    how: How,
    order: Order = "zigzag",
    sinks: jax.Array | None = None,
) -> jax.Array:
    """What `attend` gives for the whole sequence, of which each device holds its part."""
    length = q.shape[1]
    if length != k.shape[1] or (order == "zigzag" and length % 2):
        raise ShardingError(
            f"a ring of {length} queries and {k.shape[1]} keys a device in order {order}",
            hint="give both the same even length: pad the sequence to twice the ring",
        )
    run = length // 2 if order == "zigzag" else length
    block = how.block or block_of(length, length, run)
    # A tile of an early and a late piece is never skipped.
    how = replace(how, chunk=min(how.chunk, run), block=block)
    at = ring_positions(length, axis=axis, order=order)  # makes all vary over the axis
    (q, k, v), sinks, _ = align(((q, k, v), sinks, at))
    return _ring((q, k, v), sinks, RingAxis(axis, order, how))


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _ring(qkv: Triple, sinks: jax.Array | None, ring: RingAxis) -> jax.Array:
    return _run(qkv, sinks, ring)[0]


def _run(qkv: Triple, sinks: jax.Array | None, ring: RingAxis) -> tuple[jax.Array, Saved]:
    q, k, v = qkv
    queries = Queries(q, _positions(ring, q, 0))

    def more(state: TileState, kv: Pair, step: jax.Array | int) -> TileState:
        keys = Keys(*kv, _positions(ring, kv[0], step))
        return tiles.merge(state, chunks.forward(queries, keys, ring.how))

    def turn(carry: tuple[TileState, Pair], step: jax.Array) -> tuple[tuple[TileState, Pair], None]:
        state, kv = carry
        return (more(state, kv, step), _shift(ring, kv)), None

    start = tiles.nothing(q, v), (k, v)
    (state, kv), _ = lax.scan(turn, start, jnp.arange(ring.size - 1))
    out, lse = tiles.finish(more(state, kv, ring.size - 1), sinks)
    out, lse = checkpoint_name((out.astype(q.dtype), lse), KEPT)
    return out, (qkv, sinks, out, lse)


def _run_gradients(
    ring: RingAxis, saved: Saved, d_out: jax.Array
) -> tuple[Triple, jax.Array | None]:
    (q, k, v), sinks, out, lse = saved
    delta = chunks.row_sums(d_out, out)
    queries = Queries(q, _positions(ring, q, 0), d_out, lse, delta)

    def gradients(kv: Pair, step: jax.Array | int) -> Triple:
        return chunks.backward(queries, Keys(*kv, _positions(ring, kv[0], step)), ring.how)

    def turn(carry: tuple[Triple, Pair], step: jax.Array) -> tuple[tuple[Triple, Pair], None]:
        (dq, dk, dv), kv = carry
        (dk, dv), ahead = _shift(ring, (dk, dv)), _shift(ring, kv)
        more = gradients(kv, step)
        return ((dq + more[0], dk + more[1], dv + more[2]), ahead), None

    # The first round and the last are alone: no sums travel in one, no keys in the other.
    n, kv = ring.size, (k, v)
    sums = gradients(kv, 0)
    if n > 1:
        kv = _shift(ring, kv)
        (sums, kv), _ = lax.scan(turn, (sums, kv), jnp.arange(1, n - 1))
        dk, dv = _shift(ring, sums[1:])
        more = gradients(kv, n - 1)
        sums = sums[0] + more[0], *_shift(ring, (dk + more[1], dv + more[2]))
    dq, dk, dv = sums
    dsinks = None if sinks is None else tiles.sinks_gradient(sinks, lse, delta)
    return (dq.astype(q.dtype), dk.astype(k.dtype), dv.astype(v.dtype)), dsinks


_ring.defvjp(_run, _run_gradients)


def _positions(ring: RingAxis, x: jax.Array, step: jax.Array | int) -> jax.Array:
    """The positions [1,t] of what a device holds after `step` shifts."""
    source = (lax.axis_index(ring.axis) - step) % ring.size
    return ring_positions(x.shape[1], axis=ring.axis, order=ring.order, rank=source)[None]


def _shift(ring: RingAxis, pair: Pair) -> Pair:
    n = ring.size
    return lax.ppermute(pair, ring.axis, [(i, (i + 1) % n) for i in range(n)])

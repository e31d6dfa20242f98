"""One tile of attention: some queries against some keys, forward and backward.

    s[B,T,K,G,S] = cap(scale * q[B,T,K,G,H] *_H k[B,S,K,H]),  -inf where a key is not visible
    m = max_S s,  l = sum_S exp(s - m),  o = exp(s - m) *_S v[B,S,K,Hv]     the state of some keys
    merge: m = max(m1, m2),  l = l1 e^(m1-m) + l2 e^(m2-m),  o likewise     of two sets of keys
    out = o / l,  lse = m + log l                                           when all are merged

    backward: p = exp(s - lse),  delta = rowsum(dO * O) = sum_S p dp
    dv = p *_T dO,  dp = dO *_Hv v,  ds = p (dp - delta),  dq = ds *_S k,  dk = ds *_T q

Keys and queries carry their positions, so a shard of a sequence, in any order, is attended to as
part of the whole. A key at a negative position is absent. Sums are fp32; matmuls take the dtype
of q, k and v.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple  # arrays of jax or numpy

import jax
import jax.numpy as jnp
from jax import lax

from rooflight.algebra.notation import Axes
from rooflight.models.graph.ops import Mask

KEPT = "attention.mix"  # what policies of remat call the result of a kernel, its sums included


@dataclass(frozen=True, slots=True)
class How:
    """All of an attention that is not an array."""

    mask: Mask
    scale: float
    causal: bool = True
    softcap: float | None = None
    chunk: int = 512
    block: int = 0  # the tile of the TPU's kernel; none: plain jax


class TileState(NamedTuple):
    """Softmax over some of the keys: max and sum [B,T,K,G], unnormalised out [B,T,K,G,Hv]."""

    max: jax.Array
    sum: jax.Array
    out: jax.Array


class Queries(NamedTuple):
    """Queries with their positions [b,T], and of the backward pass dO, lse and delta."""

    q: jax.Array
    at: jax.Array
    d_out: jax.Array | None = None
    lse: jax.Array | None = None
    delta: jax.Array | None = None


class Keys(NamedTuple):
    """Keys and values with their positions [b,S]."""

    k: jax.Array
    v: jax.Array
    at: jax.Array


def merge(a: TileState, b: TileState) -> TileState:
    """The state over the keys of both; either may have seen nothing (max = -inf)."""
    top = jnp.maximum(a.max, b.max)
    keep_a, keep_b = jnp.exp(a.max - _finite(top)), jnp.exp(b.max - _finite(top))
    out = a.out * keep_a[..., None] + b.out * keep_b[..., None]
    return TileState(top, a.sum * keep_a + b.sum * keep_b, out)


def merge_over(state: TileState, axes: Axes) -> TileState:
    """The same over mesh axes, along which each device has seen its own keys.

    Max and sum are of all keys; the sum of `out` is left to be taken, best quantized.
    """
    top = lax.pmax(state.max, axes)
    keep = jnp.exp(state.max - _finite(top))
    return TileState(top, lax.psum(state.sum * keep, axes), state.out * keep[..., None])


def nothing(q: jax.Array, v: jax.Array) -> TileState:
    """The state of no keys, of the types that q and v give it."""
    top = jnp.full_like(q[..., 0], -jnp.inf, dtype=jnp.float32)
    zero = jnp.zeros_like(top)
    return TileState(top, zero, zero[..., None] + jnp.zeros_like(v[:, :1, :, None], jnp.float32))


def finish(state: TileState, sinks: jax.Array | None) -> tuple[jax.Array, jax.Array]:
    """Out and lse; a sink [K,G] is one more logit, whose value is zero."""
    if sinks is not None:
        logit = jnp.zeros_like(state.sum) + sinks.astype(jnp.float32)
        state = merge(state, TileState(logit, jnp.ones_like(logit), jnp.zeros_like(state.out)))
    total = jnp.where(state.sum == 0, 1, state.sum)  # nothing visible: out = 0
    return state.out / total[..., None], _finite(state.max) + jnp.log(total)


def sinks_gradient(sinks: jax.Array, lse: jax.Array, delta: jax.Array) -> jax.Array:
    """dsink[K,G] = -sum_BT p_sink delta: its value is zero, so its dp is too."""
    return -(jnp.exp(sinks.astype(jnp.float32) - lse) * delta).sum((0, 1)).astype(sinks.dtype)


def visible(q_at: jax.Array, k_at: jax.Array, how: How) -> jax.Array:
    """Which keys [b,S] each query [b,T] sees: none later if causal, none outside the window."""
    return (k_at[:, None, :] >= 0) & within(q_at[:, :, None] - k_at[:, None, :], how)


def within(gap: Any, how: How) -> Any:
    """Whether a query sees a key so far before it; of arrays of jax or numpy."""
    seen = gap >= 0 if how.causal else gap == gap
    return seen if how.mask.window is None else seen & (abs(gap) < how.mask.window)


def tile(queries: Queries, keys: Keys, seen: jax.Array, how: How) -> TileState:
    """The state of the queries over these keys."""
    s = jnp.where(seen[:, :, None, None], _scores(queries.q, keys.k, how), -jnp.inf)
    with jax.named_scope("attention.softmax"):
        top = s.max(-1)
        p = jnp.exp(s - _finite(top)[..., None])
    with jax.named_scope("attention.mix"):
        out = _matmul("btkgs,bskh->btkgh", p.astype(keys.v.dtype), keys.v)
    return TileState(top, p.sum(-1), out)


def tile_gradients(
    queries: Queries, keys: Keys, seen: jax.Array, how: How
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """What this tile adds to dq, dk and dv."""
    q, _, d_out, lse, delta = queries
    assert d_out is not None and lse is not None and delta is not None
    s = _scores(q, keys.k, how)
    p = jnp.where(seen[:, :, None, None], jnp.exp(s - lse[..., None]), 0)
    with jax.named_scope("attention.mix"):
        dv = _matmul("btkgs,btkgh->bskh", p.astype(keys.v.dtype), d_out)
        dp = _matmul("btkgh,bskh->btkgs", d_out, keys.v)
    ds = how.scale * p * (dp - delta[..., None])
    if how.softcap is not None:
        ds *= 1 - (s / how.softcap) ** 2
    with jax.named_scope("attention.scores"):
        dq = _matmul("btkgs,bskh->btkgh", ds.astype(q.dtype), keys.k)
        dk = _matmul("btkgs,btkgh->bskh", ds.astype(q.dtype), q)
    return dq, dk, dv


def _scores(q: jax.Array, k: jax.Array, how: How) -> jax.Array:
    with jax.named_scope("attention.scores"):
        s = how.scale * _matmul("btkgh,bskh->btkgs", q, k)
        return s if how.softcap is None else how.softcap * jnp.tanh(s / how.softcap)


def _matmul(subscripts: str, a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.einsum(subscripts, a, b, preferred_element_type=jnp.float32)


def _finite(top: jax.Array) -> jax.Array:
    """The max to subtract: that of no keys is -inf, and -inf - (-inf) is not a number."""
    return jnp.where(jnp.isneginf(top), 0, top)

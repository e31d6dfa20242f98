"""Attention of split positions whose keys and values were gathered. Called inside `shard_map`.

    q[B,T_X,K,G,H], k[B,S,K,H], v[B,S,K,Hv] -> out[B,T_X,K,G,Hv],  X of n devices

Keys come in the order in which the devices hold them (`ring_order`), zigzag where that divides: a
causal mask then leaves every device as many tiles, of which none holds an early and a late piece.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
from jax import lax

from rooflight.algebra.notation import Axes
from rooflight.program.attention import chunks
from rooflight.program.attention.ring_order import order_of, ring_positions, zigzag
from rooflight.program.attention.splash import block_of
from rooflight.program.attention.tile import How
from rooflight.program.varying import align


def gathered_attend(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    axis: str | Axes,
    how: How,
    sinks: jax.Array | None = None,
) -> jax.Array:
    """What `attend` gives for the whole sequence, of own queries; k and v are those of all."""
    length, devices = q.shape[1], lax.axis_size(axis)
    order = order_of(length, devices)
    run = length // 2 if order == "zigzag" else length
    block = how.block or block_of(length, k.shape[1], run)
    how = replace(how, chunk=min(how.chunk, run), block=block)
    mine = ring_positions(length, axis=axis, order=order)[None]
    every = zigzag(jnp.arange(length * devices), devices, dim=0)[None]
    (q, k, v), sinks, at = align(((q, k, v), sinks, (mine, every)))
    return chunks.attend_chunks((q, k, v), sinks, at, how)

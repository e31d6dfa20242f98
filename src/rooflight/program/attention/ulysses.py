"""All-to-all attention: positions split before and after, heads in between. Inside `shard_map`.

    q[B,T_X,K,G,H], k[B,T_X,K,H], v[B,T_X,K,Hv] -> out[B,T_X,K,G,Hv],  X of n devices
    q[B,T,K_X,G,H] = AllToAll_X(q[B,T_X,K,G,H]), and so k and v
    out[B,T,K_X,G,Hv] = attention(q, k, v)                     whole sequence, own heads
    out[B,T_X,K,G,Hv] = AllToAll_X(out[B,T,K_X,G,Hv])

Every device has whole sequences of some heads, so causal masks are balanced as they are. With
fewer kv heads than devices each is sent to the n/K devices that share its queries: q is read as
[B,T_X,n,GK/n,H] and k, v are repeated n/K times. Gradients are the transposes, again all-to-alls.
"""

import jax
import jax.numpy as jnp
from jax import lax

from rooflight.errors import ShardingError
from rooflight.program.attention.kernels import attend
from rooflight.program.attention.tile import How

POSITIONS, HEADS = 1, 2


def ulysses_attend(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    axis: str,
    how: How,
    sinks: jax.Array | None = None,
    kv_length: jax.Array | None = None,
) -> jax.Array:
    """What `attend` gives for the whole sequence, of which each device holds a block."""
    n = lax.axis_size(axis)
    rows, length, kv_heads, groups, dim = q.shape
    if kv_heads % n and (n % kv_heads or groups % (n // kv_heads)):
        raise ShardingError(
            f"all-to-all attention of {kv_heads} kv heads x {groups} groups over {n} devices: "
            "neither kv heads nor the groups of each divide",
            hint=f"choose an axis whose size divides {kv_heads}, or is a multiple of it that "
            f"divides {kv_heads * groups}; or use ring_attend",
        )
    copies = 1 if kv_heads % n == 0 else n // kv_heads
    q = q.reshape(rows, length, kv_heads * copies, groups // copies, dim)
    k, v = (jnp.repeat(x, copies, axis=HEADS) for x in (k, v))
    mixed = attend(
        *(_to_heads(x, axis) for x in (q, k, v)),
        mask=how.mask,
        scale=how.scale,
        causal=how.causal,
        softcap=how.softcap,
        sinks=None if sinks is None else _own_heads(sinks.reshape(q.shape[2:4]), axis),
        kv_length=kv_length,
        chunk=how.chunk,
    )
    out = lax.all_to_all(mixed, axis, POSITIONS, HEADS, tiled=True)
    return out.reshape(rows, length, kv_heads, groups, -1)


def _to_heads(x: jax.Array, axis: str) -> jax.Array:
    return lax.all_to_all(x, axis, HEADS, POSITIONS, tiled=True)


def _own_heads(sinks: jax.Array, axis: str) -> jax.Array:
    size = sinks.shape[0] // lax.axis_size(axis)
    return lax.dynamic_slice_in_dim(sinks, lax.axis_index(axis) * size, size)

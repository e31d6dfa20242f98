"""Attention of a whole sequence: the one entry, and the choice of what computes it.

    q[B_X,T,K_Y,G_Z,H], k[B_X,S,K_Y,H], v[B_X,S,K_Y,Hv] -> out[B_X,T,K_Y,G_Z,Hv]

Nothing is exchanged: batch and heads may be split over any axes, positions and head dims not
(`ring` splits positions). Where mesh axes are explicit the work is mapped over them;
a gradient of k and v that is split over Z is summed once, by the transpose of the map.

What computes it: "splash" is the Pallas TPU kernel that ships with jax; "chunked" is the same sum
in plain jax, for every platform. Unasked, a TPU target takes the kernel for what it can do.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from rooflight.errors import ShardingError, UsageError
from rooflight.models.graph.ops import Mask
from rooflight.program.attention.chunks import ABSENT, attend_chunks
from rooflight.program.attention.splash import attend_splash, block_of, splash_can
from rooflight.program.attention.tile import How
from rooflight.program.varying import align

Kernel = Literal["chunked", "splash"]
Start = int | jax.Array  # of all rows, or [B] of each


def attend(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    mask: Mask,
    scale: float,
    causal: bool = True,
    softcap: float | None = None,
    sinks: jax.Array | None = None,
    q_start: Start | None = None,
    k_start: Start = 0,
    kv_length: jax.Array | None = None,
    chunk: int = 512,
    kernel: Kernel | None = None,
) -> jax.Array:
    """Softmax attention [B,T,K,G,H] x [B,S,K,H] -> [B,T,K,G,Hv], differentiable in q, k, v, sinks.

    Query i is at position `q_start` + i, by default the last T of the keys; key j at `k_start` + j.
    Keys at position `kv_length` [B] or later are absent. A query that sees no key gives zero.
    A sink [K,G] is a logit that every query of its head also sees, and whose value is zero.
    """
    how = How(mask, scale, causal, softcap, chunk)
    q_start = k_start + (k.shape[1] - q.shape[1]) if q_start is None else q_start
    if kernel is None:
        kernel = "splash" if splash_can(q, k, q_start, k_start) else "chunked"
        if kv_length is None and isinstance(q_start, int) and isinstance(k_start, int):
            lengths = q.shape[1], k.shape[1]
            how = replace(how, block=block_of(*lengths, *lengths, q_start, k_start))
    if kernel == "splash":
        if not (isinstance(q_start, int) and isinstance(k_start, int)):
            raise UsageError(
                "the splash kernel compiles positions in; these starts are known only at run time",
                hint='pass starts as int, or kernel="chunked"',
            )
        local = partial(attend_splash, how=how, offset=q_start - k_start)
        length = None if kv_length is None else kv_length - k_start
        return _mapped(local, (q, k, v), sinks, (length,), check_vma=False)
    local = partial(_chunked, how=how)
    return _mapped(local, (q, k, v), sinks, (q_start, k_start, kv_length))


def _chunked(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    sinks: jax.Array | None,
    q_start: jax.Array,
    k_start: jax.Array,
    kv_length: jax.Array | None,
    *,
    how: How,
) -> jax.Array:
    """The local part; positions are [1,T] or, where rows differ, [B,T]."""
    q_at = jnp.atleast_1d(q_start)[:, None] + jnp.arange(q.shape[1])
    k_at = jnp.atleast_1d(k_start)[:, None] + jnp.arange(k.shape[1])
    if kv_length is not None:
        k_at = jnp.where(k_at < kv_length[:, None], k_at, ABSENT)
    (q, k, v), sinks, at = align(((q, k, v), sinks, (q_at, k_at)))
    return attend_chunks((q, k, v), sinks, at, how)


def _mapped(
    local: Callable[..., jax.Array],
    qkv: tuple[jax.Array, jax.Array, jax.Array],
    sinks: jax.Array | None,
    rows: tuple[Start | None, ...],
    *,
    check_vma: bool = True,
) -> jax.Array:
    """`local` on each device's batch and heads; `rows` are of one row [B] or of all []."""
    mesh = jax.sharding.get_abstract_mesh()
    arrays = tuple(None if r is None else jnp.asarray(r) for r in rows)
    if mesh.manual_axes or not mesh.explicit_axes:
        return local(*qkv, sinks, *arrays)
    batch, kv, groups = _axes_of(*qkv)
    pending = jax.typeof(sinks).sharding.spec.reduced if sinks is not None and check_vma else ()
    heads = PartitionSpec(kv, groups, reduced=frozenset(pending))
    keys = PartitionSpec(batch, None, kv, None)
    queries = PartitionSpec(batch, None, kv, groups, None)
    per_row = tuple(
        PartitionSpec(batch) if a is not None and a.ndim else PartitionSpec() for a in arrays
    )
    arrays = tuple(
        a if a is None else jax.reshard(a, s) for a, s in zip(arrays, per_row, strict=True)
    )
    sinks = None if sinks is None else jax.reshard(sinks, heads)
    return jax.shard_map(
        local,
        in_specs=(queries, keys, keys, heads, *per_row),
        out_specs=queries,
        axis_names=set(mesh.explicit_axes),
        check_vma=check_vma,
    )(*qkv, sinks, *arrays)


def _axes_of(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[Any, Any, Any]:
    """The mesh axes of batch, kv heads and groups, checked to be the only ones."""
    batch, _, kv, groups, _ = _spec(q)
    wanted = {"q": (batch, None, kv, groups, None)} | dict.fromkeys("kv", (batch, None, kv, None))
    for name, array in zip("qkv", (q, k, v), strict=True):
        if _spec(array) != wanted[name]:
            raise ShardingError(
                f"attention of {name} {jax.typeof(array)} beside q {jax.typeof(q)}: only batch and "
                "heads may be split, and for q, k and v alike",
                hint="split positions with ring_attend inside jax.shard_map, "
                f"or move it first: jax.reshard({name}, PartitionSpec{wanted[name]})",
            )
    return batch, kv, groups


def _spec(array: jax.Array) -> tuple[Any, ...]:
    return tuple(jax.typeof(array).sharding.spec)

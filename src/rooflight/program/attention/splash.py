"""The Pallas TPU attention that ships with jax, in the shapes of this program.

    q[B,T,K,G,H] -> [B,N,T,H] with N = K G;  k[B,S,K,H] -> [B,K,S,H];  one kernel call a row of B

It computes what `attention_tile` writes down, by tiles in on-chip memory, skipping those that the
mask hides; the mask is compiled in, so positions must be known when the program is traced.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas.ops.tpu import splash_attention as splash
from jax.sharding import AxisType

from rooflight.program.attention.tile import KEPT, How

LANES = 128  # the kernel's tiles are multiples of the vector lanes
LARGEST = 512


def kernels_can() -> bool:
    """Whether the program is for a TPU, and a Pallas kernel may run there.

    A kernel's result does not say over which axes it varies, so it cannot run inside a map that
    checks them, and the compiler cannot split it by itself: every axis must be explicit.
    """
    mesh = jax.sharding.get_abstract_mesh()
    device = mesh.abstract_device
    kind = device.device_kind if device else jax.default_backend()
    if not kind.lower().startswith("tpu"):
        return False
    return all(kind == AxisType.Explicit for kind in mesh.axis_types)


def splash_can(q: jax.Array, k: jax.Array, *starts: object) -> bool:
    """Whether this kernel may run, and takes these lengths at these positions."""
    whole = q.shape[1] % LANES == 0 and k.shape[1] % LANES == 0
    return kernels_can() and whole and all(isinstance(start, int) for start in starts)


def attend_splash(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    sinks: jax.Array | None,
    kv_length: jax.Array | None,
    *,
    how: How,
    offset: int,
    interpret: bool = False,
) -> jax.Array:
    """Attention of queries that start `offset` after the keys, of which `kv_length` are there."""
    rows, length, kv_heads, groups, _ = q.shape
    heads = kv_heads * groups
    mask = splash.MultiHeadMask([_mask((length, k.shape[1]), how, offset)] * heads)
    kernel = splash.make_splash_mha(
        mask,
        block_sizes=_blocks(length, k.shape[1]),
        head_shards=1,
        q_seq_shards=1,
        attn_logits_soft_cap=how.softcap,
        residual_checkpoint_name=KEPT,
        interpret=interpret,
    )
    q = (q * how.scale).reshape(rows, length, heads, -1).swapaxes(1, 2)
    segments = None if kv_length is None else _segments(kv_length, length, k.shape[1])
    flat = None if sinks is None else sinks.reshape(heads)
    rows_of = jax.vmap(kernel, in_axes=(0, 0, 0, 0, None))
    out = rows_of(q, k.swapaxes(1, 2), v.swapaxes(1, 2), segments, flat)
    assert isinstance(out, jax.Array)  # and not with residuals: none were asked for
    out = out.swapaxes(1, 2).reshape(rows, length, kv_heads, groups, -1)
    sees = _sees_any((length, k.shape[1]), how, offset, kv_length)
    if isinstance(sees, jax.Array) or not sees.all():
        out = jnp.where(sees[:, :, None, None, None], out, 0)
    return out


def _sees_any(
    shape: tuple[int, int], how: How, offset: int, kv_length: jax.Array | None
) -> jax.Array | np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
    """Which queries [B,T] see a key; to others the kernel gives the mean of all values."""
    queries, keys = shape
    at, window = offset + np.arange(queries)[None], how.mask.window
    first = np.zeros_like(at) if window is None else np.maximum(at - window + 1, 0)
    last = np.full_like(at, keys - 1) if window is None else at + window - 1
    last = np.minimum(at if how.causal else last, keys - 1)
    if kv_length is None:
        return first <= last
    return jnp.asarray(first) <= jnp.minimum(last, kv_length[:, None] - 1)


def _mask(shape: tuple[int, int], how: How, offset: int) -> splash.Mask:
    if how.mask.window is not None:
        side = how.mask.window - 1
        return splash.LocalMask(shape, (side, 0 if how.causal else side), offset)
    return splash.CausalMask(shape, offset) if how.causal else splash.FullMask(shape)


def _segments(kv_length: jax.Array, queries: int, keys: int) -> splash.SegmentIds:
    """Absent keys belong to another segment than all queries."""
    absent = jnp.arange(keys) >= kv_length[:, None]
    return splash.SegmentIds(
        q=jnp.zeros((kv_length.shape[0], queries), jnp.int32), kv=absent.astype(jnp.int32)
    )


def _blocks(queries: int, keys: int) -> splash.BlockSizes:
    q, kv = _block(queries), _block(keys)
    return splash.BlockSizes(
        block_q=q, block_kv=kv, block_q_dkv=q, block_kv_dkv=kv, block_q_dq=q, block_kv_dq=kv
    )


def _block(length: int) -> int:
    """The largest multiple of the lanes up to `LARGEST` that divides the length."""
    return max(b for b in range(LANES, LARGEST + 1, LANES) if length % b == 0)

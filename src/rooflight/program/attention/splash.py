"""The Pallas TPU attention that ships with jax, in the shapes of this program.

    q[B,T,K,G,H] -> [B,N,T,H] with N = K G;  k[B,S,K,H] -> [B,K,S,H];  one kernel call a row of B

It computes what `tile` writes down, by tiles in on-chip memory, skipping those that the mask hides.
`attend_splash` has the mask compiled in: positions must be known when the program is traced.
`forward` and `backward` are those of `chunks`, of positions that only a device knows, in runs of
`How.block`: by how many tiles queries are after keys, a table says which mask they take, if any.
"""

import math
from functools import partial
from typing import Any  # functions of jax that are not public

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.pallas.ops.tpu import splash_attention as splash
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernels
from jax.experimental.pallas.ops.tpu.splash_attention.splash_attention_mask_info import MaskInfo
from jax.sharding import AxisType

from rooflight.program.attention.tile import KEPT, How, Keys, Queries, TileState, within
from rooflight.program.varying import unchecked

LANES = 128  # the kernel's tiles are multiples of the vector lanes
LARGEST = 512
_OF_KEYS: Any = kernels._splash_attention_bwd_dkv  # pyright: ignore[reportPrivateUsage]
_OF_QUERIES: Any = kernels._splash_attention_bwd_dq  # pyright: ignore[reportPrivateUsage]
MOST_TILES = 1 << 16  # pairs of tiles of a call: what is known of each lies in scalar memory


def is_for_tpu() -> bool:
    """Whether the program that is traced is for a TPU."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    kind = device.device_kind if device else jax.default_backend()
    return kind.lower().startswith("tpu")


def kernels_can() -> bool:
    """Whether the program is for a TPU, and a Pallas kernel may be mapped over its mesh.

    The compiler cannot split a kernel by itself: every axis must be explicit.
    """
    kinds = jax.sharding.get_abstract_mesh().axis_types
    return is_for_tpu() and all(kind == AxisType.Explicit for kind in kinds)


def block_of(queries: int, keys: int, *runs: int) -> int:
    """Inside `shard_map`: the kernel's tile, which divides all `runs`; 0 where plain jax is due."""
    kinds = jax.sharding.get_abstract_mesh().axis_types
    run = math.gcd(*runs)
    if run % LANES or not is_for_tpu() or any(kind != AxisType.Manual for kind in kinds):
        return 0
    block = _block(run)
    return block if queries * keys <= MOST_TILES * block**2 else 0


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


def forward(queries: Queries, keys: Keys, how: How) -> TileState:
    """The state of the queries over these keys: as if of one key, their mix, of weight e^lse."""
    out, lse = unchecked(partial(_forward, how=how))(queries.q, *keys, queries.at)
    seen = lse > -jnp.inf
    return TileState(lse, seen.astype(lse.dtype), jnp.where(seen[..., None], out, 0))


def _forward(
    q: jax.Array, k: jax.Array, v: jax.Array, k_at: jax.Array, q_at: jax.Array, *, how: How
) -> tuple[jax.Array, jax.Array]:
    kernel = kernels.SplashAttentionKernel(
        _mask_info(q_at, k_at, how),
        *(None, None),
        block_sizes=splash.BlockSizes(how.block, how.block),
        is_mqa=False,
        save_residuals=True,
        mask_value=kernels.DEFAULT_MASK_VALUE,
        attn_logits_soft_cap=how.softcap,
        residual_checkpoint_name=None,
        mask_function=None,
        interpret=not is_for_tpu(),
    )
    rows = jax.vmap(kernel)(*map(_heads_first, (q * how.scale, k, v)))
    out, lse = rows[0], rows[1][0][..., None]
    return _heads_last(out, q).astype(jnp.float32), _heads_last(lse, q)[..., 0]


def backward(queries: Queries, keys: Keys, how: How) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Gradients of q, k and v in fp32; the queries come with dO, lse and delta."""
    return unchecked(partial(_backward, how=how))(queries, keys)


def _backward(queries: Queries, keys: Keys, *, how: How) -> tuple[jax.Array, jax.Array, jax.Array]:
    q, q_at, d_out, lse, delta = queries
    assert d_out is not None and lse is not None and delta is not None
    options: dict[str, Any] = {
        **dict.fromkeys(("bq", "bkv"), how.block),
        **{f"{x}_layout": splash.QKVLayout.HEAD_DIM_MINOR for x in "qkv"},
        **dict(is_mqa=False, mask_function=None, interpret=not is_for_tpu()),
        **dict(mask_value=kernels.DEFAULT_MASK_VALUE, attn_logits_soft_cap=how.softcap),
    }
    of_q, of_k = (_mask_info(q_at, keys.at, how, of_keys=x) for x in (False, True))

    def row(q: jax.Array, k: jax.Array, v: jax.Array, d_out: jax.Array, *sums: jax.Array) -> Any:
        given = q, k, v, None, None, sums[0][..., 0], d_out, sums[1][..., 0]
        one = {"bkv_compute": how.block, "use_fused_bwd_kernel": False}
        _, dk, dv = _OF_KEYS(*given, mask_info=of_k, **options, **one)
        return _OF_QUERIES(*given, mask_info=of_q, **options), dk, dv

    rows = q * how.scale, keys.k, keys.v, d_out, lse[..., None], delta[..., None]
    made = jax.vmap(row)(*map(_heads_first, rows))
    like = (q, keys.k, keys.v)
    dq, dk, dv = (_heads_last(x, y).astype(jnp.float32) for x, y in zip(made, like, strict=True))
    return how.scale * dq, dk, dv


def _masks(how: How) -> tuple[jax.Array, jax.Array, jax.Array]:
    """By distance in tiles from -reach to reach, any further one being like the last: 0, 1 or 2 if
    queries see none, some or all of the keys, and the number of the mask; and all masks.
    """
    window = how.mask.window
    reach = 1 if window is None else 1 - (-window // how.block)
    at = np.arange(how.block)
    near = at[:, None] - at
    tiles: Any = np.stack([within(how.block * n + near, how) for n in range(-reach, reach + 1)])
    every, some = tiles.all((1, 2)), tiles.any((1, 2))
    partly = some & ~every
    by_number = some.astype(int) + every, np.where(partly, partly.cumsum() - 1, 0)
    seen, mask = (jnp.asarray(x, jnp.int8) for x in by_number)
    return seen, mask, jnp.asarray(tiles[partly] if partly.any() else tiles[:1])


def _mask_info(q_at: jax.Array, k_at: jax.Array, how: How, *, of_keys: bool = False) -> MaskInfo:
    """What each pair of tiles computes, and what the kernel fetches while it skips one."""
    (seen, mask, masks), dim = _masks(how), 1 if of_keys else 2
    q, k = (at[0, :: how.block] // how.block for at in (q_at, k_at))
    reach = len(seen) // 2
    after = jnp.clip(q[:, None] - k, -reach, reach)[None] + reach
    length, number = after.shape[dim], lax.broadcasted_iota(jnp.int32, after.shape, dim)
    found = jnp.where(seen[after] > 0, number, length)
    following = (lax.cummin(found, dim, reverse=True) % length).astype(jnp.int16)
    masks = masks.swapaxes(1, 2) if of_keys else masks
    return MaskInfo(following, mask[after], seen[after], masks, None)


def _heads_first(x: jax.Array) -> jax.Array:
    """[B,T,...,H] as [B,N,T,H]."""
    return x.reshape(*x.shape[:2], -1, x.shape[-1]).swapaxes(1, 2)


def _heads_last(x: jax.Array, like: jax.Array) -> jax.Array:
    return x.swapaxes(1, 2).reshape(*like.shape[:-1], x.shape[-1])

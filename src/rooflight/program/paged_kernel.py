"""The ragged paged attention kernel that ships with jax, in the shapes of this program.

    q[B,1,K,G,H] -> [B,K G,H];  pages[L,N,S,2K,H] -> [L N,S,2K,H], keys at even heads

The kernel reads each row's own blocks and no others. It takes all layers as one pool of blocks, in
which those of a layer begin at layer times N: no layer is ever sliced out.
"""

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.ragged_paged_attention import ragged_paged_attention

from rooflight.program.attention_splash import LANES, kernels_can
from rooflight.program.paged_blocks import Blocks
from rooflight.specs.model import Attention

# Of a tile. Left to itself the kernel asks which TPU is attached, and there may be none yet.
_KEYS, _QUERIES = 512, 32
_WORD_BYTES = 4


def ragged_can(
    spec: Attention, q: jax.Array, pages: dict[str, jax.Array], *, num_kv_heads: int
) -> bool:
    """Whether this kernel may run, and takes one new token a row.

    It has no sinks, no scale a position, and heads of whole vector lanes; those of a device, two
    a kv head, must fill whole words and then 1, 2, 4 or a multiple of 8 sublanes.
    """
    if not kernels_can() or set(pages) != {"kv"} or spec.has_sinks:
        return False
    if q.shape[1] > 1 or spec.head_dim % LANES:
        return False
    sublanes, rest = divmod(2 * num_kv_heads * pages["kv"].dtype.itemsize, _WORD_BYTES)
    return not rest and (sublanes in (1, 2, 4) or sublanes % 8 == 0)


def attend_ragged(
    q: jax.Array,
    pages: jax.Array,
    blocks: Blocks,
    *,
    spec: Attention,
    scale: float,
) -> jax.Array:
    """Attention of each row's one new token to all positions of its blocks up to it."""
    rows, ids = blocks.rows, blocks.ids
    num_layers, num_blocks, size, twice_heads, head_dim = pages.shape
    batch = q.shape[0]
    lengths = jnp.maximum(rows.starts + rows.lengths, 1)  # a row without a sequence reads one
    pool = pages.reshape(num_layers * num_blocks, size, twice_heads, head_dim)
    owned = jnp.minimum(ids, num_blocks - 1) + blocks.layer * num_blocks
    out = ragged_paged_attention(
        q.reshape(batch, -1, head_dim),
        pool,
        lengths.astype(jnp.int32),
        owned.astype(jnp.int32),
        jnp.arange(batch + 1, dtype=jnp.int32),
        jnp.array([batch], jnp.int32),
        sm_scale=scale,
        sliding_window=spec.window,
        soft_cap=spec.softcap,
        num_kv_pages_per_block=min(ids.shape[1], max(1, _KEYS // size)),
        num_queries_per_block=min(batch, _QUERIES),
    )
    return out.reshape(q.shape)

"""Attention of new tokens to a paged cache: written first, then read with all before them.

    kv[B_X,T,2K_Y,H] -> pages[L,N_X,S,2K_Y,H] at (layer, table[p // S], p % S)
    q[B_X,T,K_Y,G,H], pages, tables[B_X,P] -> attended_heads[B_X,T,K_Y,G,H]

Nothing is exchanged, unless the blocks of a row are spread over devices (`paged_blocks`). Rows may
have different lengths: each sees its own positions and no more.
A latent is not expanded to heads; W_uk turns the queries to its space and W_uv what they find back:

    q[B_X,T,N_Y,H] * W_uk[R,N_Y,H] -> q_R[B_X,T,N_Y,R]       scores = q_R . latent + q_rope . k_rope
    found[B_X,T,N_Y,R] * W_uv[R,N_Y,Hv] -> attended_heads[B_X,T,N_Y,Hv]

Attention to a paged cache row by row: each row loops over the blocks that it has, and no more.

    for each row b: for each block p of those that its queries see:
        state = merge of the state with that of q_b over load(ids[b,p])

One block of keys and values lives at a time. How many blocks a row has is only known when it runs,
so one compiled function serves rows of any length.
"""

import math
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.pallas.ops.tpu.ragged_paged_attention import ragged_paged_attention
from jax.sharding import PartitionSpec
from jax.typing import DTypeLike

from rooflight.algebra.notation import Axes
from rooflight.models.graph.ops import Mask
from rooflight.models.spec import Attention
from rooflight.program.attention.chunks import ABSENT
from rooflight.program.attention.splash import LANES, kernels_can
from rooflight.program.attention.tile import How, TileState, visible
from rooflight.program.cpu.load import PAGED_ATTENTION, STORED
from rooflight.program.decode.cache import SCALE, CacheAxes, place_of, spread_of
from rooflight.program.decode.form import decode_form
from rooflight.program.matmuls import Scope
from rooflight.program.model.attention import Heads
from rooflight.program.model.layers import softcapped
from rooflight.program.paged.blocks import (
    Blocks,
    PagedBatch,
    Pages,
    attend_blocks,
    merged,
    own_blocks,
    read,
    write,
)
from rooflight.program.shardings import map_blocks, spec_of
from rooflight.program.varying import align

LOWEST = -1e30  # a max of no keys that may be subtracted from itself
# The id of a block -> its keys [S,K,H] and values [S,K,Hv].
Load = Callable[[Pages, jax.Array], tuple[jax.Array, jax.Array]]
Row = tuple[jax.Array, jax.Array, jax.Array, jax.Array]  # q[T,K,G,H], ids[P], start and length

_LATENT = ("latent", "k_rope")
Paged = tuple[Pages, jax.Array, PagedBatch]  # with the number of a layer


def attend_pages(
    scope: Scope, spec: Attention, heads: Heads, *, pages: Pages, layer: jax.Array, rows: PagedBatch
) -> tuple[jax.Array, Pages]:
    """attended_heads of the new tokens, and the pages with their keys and values in them."""
    assert scope.block is not None
    place = place_of(scope.constraints, scope.block)
    weighted = scope.constraint("attention.mix")
    attend_to = _latent if spec.latent else _grouped
    by_row = PartitionSpec(place.rows or None)
    rows = PagedBatch(*(jax.reshard(x, by_row) for x in rows))
    with jax.named_scope("attention.softmax"):
        attended, pages = attend_to(scope, spec, heads, place, (pages, layer, rows))
    with jax.named_scope("attention.mix"):
        for tensor in weighted.result[1:]:
            attended = jax.reshard(attended, spec_of(tensor))
    return attended, pages


def _paged_specs(
    paged: Paged, place: CacheAxes
) -> tuple[dict[str, PartitionSpec], PartitionSpec, PartitionSpec]:
    """Specs of pages, of the layer's number and of what there is one of a row."""
    pages = {n: jax.typeof(x).sharding.spec for n, x in paged[0].items()}
    return pages, PartitionSpec(), PartitionSpec(place.rows or None)


def kv_entry(scope: Scope, heads: Heads) -> jax.Array:
    """Each head's key, then its value [B,T,2K,H], where attention takes them."""
    k = scope.along(heads.k[0], scope.constraint("attention.scores").operands[1])
    v = scope.along(heads.v, scope.constraint("attention.mix").operands[1])
    return jnp.stack([k, v], 3).reshape(*k.shape[:2], -1, k.shape[-1])


def latent_entries(heads: Heads, place: CacheAxes) -> tuple[jax.Array, jax.Array]:
    """The latent [B,T,R] and the rotated key [B,T,P] that all heads share."""
    assert heads.latent is not None
    both = (heads.latent, heads.k[1])
    latent, k_rope = (jax.reshard(x, place.latent) for x in both)
    return latent, k_rope


def _grouped(
    scope: Scope, spec: Attention, heads: Heads, place: CacheAxes, paged: Paged
) -> tuple[jax.Array, Pages]:
    q = scope.along(heads.q[0], scope.constraint("attention.scores").operands[0])
    by_head = PartitionSpec(place.heads or None, place.groups or None)
    sinks = None
    if spec.has_sinks:
        sinks = jax.reshard(scope.weights["attention.Sinks"].astype(scope.dtype), by_head)
    queries = PartitionSpec(*place.kv, place.groups or None)
    specs = _paged_specs(paged, place)
    ways = math.prod(scope.constraints.axes[a] for a in place.heads)
    spread = spread_of(paged[0], place)
    can = ragged_can(spec, q, paged[0], num_kv_heads=spec.num_kv_heads // ways)
    takes_kernel = can and not spread
    # As the next matmul takes them: there and then, the sum over `spread` is half the bytes.
    is_scattered = (
        bool(spread) and scope.constraint("attention.mix").result[-1].axes_of("G") == spread
    )
    found = PartitionSpec(*place.kv, spread) if is_scattered else queries
    how = {"spec": spec, "place": place, "spread": spread, "is_scattered": is_scattered}
    run = map_blocks(
        partial(_local_grouped, **how, takes_kernel=takes_kernel),
        (queries, place.kv, by_head, *specs),
        (found, specs[0]),
        check_vma=not takes_kernel,
    )
    return run(q, kv_entry(scope, heads), sinks, *paged)


def _local_grouped(
    q: jax.Array,
    kv: jax.Array,
    sinks: jax.Array | None,
    pages: Pages,
    layer: jax.Array,
    rows: PagedBatch,
    *,
    spec: Attention,
    place: CacheAxes,
    spread: Axes,
    is_scattered: bool,
    takes_kernel: bool,
) -> tuple[jax.Array, Pages]:
    scale = spec.head_dim**-0.5 if spec.scale is None else spec.scale
    blocks = own_blocks(pages, layer, rows, place.rows + spread)
    pages = write(pages, {"kv": kv}, blocks)
    if takes_kernel:
        return attend_ragged(q, pages["kv"], blocks, spec=spec, scale=scale), pages
    how = How(Mask(spec.window), scale, softcap=spec.softcap)
    form = decode_form()
    if form.is_by_row:

        def load(pages: Pages, block: jax.Array) -> tuple[jax.Array, jax.Array]:
            both = read_block(pages, "kv", layer, block, q.dtype)
            return both[:, 0::2], both[:, 1::2]

        if form.is_native and native_can(pages):
            state = attend_natively(q, pages["kv"], blocks, how)
        else:
            state = attend_by_row(q, pages, blocks, how, load)
        out = merged(state, sinks, q.dtype, spread=spread, is_scattered=is_scattered)
        return out, pages
    both = read(pages, "kv", blocks, q.dtype)
    pair = both[:, :, 0::2], both[:, :, 1::2]
    attended = attend_blocks(q, pair, sinks, blocks, how, spread=spread, is_scattered=is_scattered)
    return attended, pages


def _latent(
    scope: Scope, spec: Attention, heads: Heads, place: CacheAxes, paged: Paged
) -> tuple[jax.Array, Pages]:
    constraints = [scope.constraint(n) for n in ("attention.scores", "attention.rope_scores")]
    q, q_rope = (
        scope.along(x, constraint.operands[0])
        for x, constraint in zip(heads.q, constraints, strict=True)
    )
    by_head = PartitionSpec(None, place.heads or None)
    w_uk, w_uv = (
        jax.reshard(scope.weights[f"attention.{n}"].astype(scope.dtype), by_head)
        for n in ("W_uk", "W_uv")
    )
    specs = _paged_specs(paged, place)
    queries, shared = place.kv, place.latent
    run = map_blocks(
        partial(_local_latent, spec=spec, place=place, spread=spread_of(paged[0], place)),
        (queries, queries, shared, shared, by_head, by_head, *specs),
        (queries, specs[0]),
    )
    return run(q, q_rope, *latent_entries(heads, place), w_uk, w_uv, *paged)


def _local_latent(
    q: jax.Array,
    q_rope: jax.Array,
    latent: jax.Array,
    k_rope: jax.Array,
    w_uk: jax.Array,
    w_uv: jax.Array,
    pages: Pages,
    layer: jax.Array,
    rows: PagedBatch,
    *,
    spec: Attention,
    place: CacheAxes,
    spread: Axes,
) -> tuple[jax.Array, Pages]:
    blocks = own_blocks(pages, layer, rows, place.rows + spread)
    pages = write(pages, {"latent": latent, "k_rope": k_rope}, blocks)
    scale = (q.shape[-1] + q_rope.shape[-1]) ** -0.5 if spec.scale is None else spec.scale
    how = How(Mask(spec.window), scale, softcap=spec.softcap)
    q = jnp.concatenate([jnp.einsum("btnh,rnh->btnr", q, w_uk), q_rope], -1)

    def as_pair(parts: list[jax.Array]) -> tuple[jax.Array, jax.Array]:
        """One kv head, which all query heads share."""
        return jnp.expand_dims(jnp.concatenate(parts, -1), -2), jnp.expand_dims(parts[0], -2)

    if decode_form().is_by_row:

        def load(pages: Pages, block: jax.Array) -> tuple[jax.Array, jax.Array]:
            return as_pair([read_block(pages, n, layer, block, q.dtype) for n in _LATENT])

        state = attend_by_row(q[:, :, None], pages, blocks, how, load)
        found = merged(state, None, q.dtype, spread=spread)
    else:
        pair = as_pair([read(pages, n, blocks, q.dtype) for n in _LATENT])
        found = attend_blocks(q[:, :, None], pair, None, blocks, how, spread=spread)
    return jnp.einsum("btnr,rnv->btnv", found[:, :, 0], w_uv), pages


# `paged_rows.attend_by_row` by an FFI custom call of this CPU (`csrc/paged_attention.cc`).


def native_can(pages: Pages) -> bool:
    """Whether it reads such pages: keys and values of heads, as they are."""
    return set(pages) == {"kv"} and pages["kv"].dtype in STORED


def attend_natively(q: jax.Array, pages: jax.Array, blocks: Blocks, how: How) -> TileState:
    """The state of q[B,T,K,G,H] over the blocks of each row, in pages[L,N,S,2K,H]."""
    assert how.causal
    rows = blocks.rows
    scaled = q.astype(jnp.float32) * how.scale
    whole = (blocks.ids, rows.starts, rows.lengths, blocks.layer)
    operands = align((scaled, pages, *(jnp.asarray(x, jnp.int32) for x in whole)))
    state = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in (q.shape[:-1],) * 2]
    call = jax.ffi.ffi_call(PAGED_ATTENTION, (*state, jax.ShapeDtypeStruct(q.shape, jnp.float32)))
    window, softcap = np.int64(how.mask.window or 0), np.float32(how.softcap or 0)
    return TileState(*call(*operands, window=window, softcap=softcap))


# The ragged paged attention kernel that ships with jax, in the shapes of this program.

# Of a tile. Left to itself the kernel asks which TPU is attached, and there may be none yet.
_KEYS, _QUERIES = 512, 32
_WORD_BYTES = 4


def ragged_can(
    spec: Attention, q: jax.Array, pages: dict[str, jax.Array], *, num_kv_heads: int
) -> bool:
    """Whether this kernel may run, and takes one new token per row.

    It has no sinks, no scale per position, and heads of whole vector lanes; those of a device, two
    a kv head, must fill whole words and then 1, 2, 4 or a multiple of 8 sublanes.
    """
    if not kernels_can() or set(pages) != {"kv"} or spec.has_sinks:
        return False
    if q.shape[1] > 1 or spec.head_dim % LANES:
        return False
    sublanes, rest = divmod(2 * num_kv_heads * pages["kv"].dtype.itemsize, _WORD_BYTES)
    return not rest and (sublanes in (1, 2, 4) or sublanes % 8 == 0)


def attend_ragged(
    q: jax.Array, pages: jax.Array, blocks: Blocks, *, spec: Attention, scale: float
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

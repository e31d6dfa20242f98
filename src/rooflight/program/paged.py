"""Attention of new tokens to a paged cache: written first, then read with all before them.

    kv[B_X,T,2K_Y,H] -> pages[L,N_X,S,2K_Y,H] at (layer, table[p // S], p % S)
    q[B_X,T,K_Y,G,H], pages, tables[B_X,P] -> attended_heads[B_X,T,K_Y,G,H]

Nothing is exchanged, unless the blocks of a row are spread over devices (`paged_blocks`). Rows may
have different lengths: each sees its own positions and no more.
A latent is not expanded to heads; W_uk turns the queries to its space and W_uv what they find back:

    q[B_X,T,N_Y,H] * W_uk[R,N_Y,H] -> q_R[B_X,T,N_Y,R]       scores = q_R . latent + q_rope . k_rope
    found[B_X,T,N_Y,R] * W_uv[R,N_Y,Hv] -> attended_heads[B_X,T,N_Y,Hv]
"""

import math
from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from rooflight.algebra import Axes
from rooflight.graph import Mask
from rooflight.program.attention_tile import How
from rooflight.program.cache import Place, place_of, spread_of
from rooflight.program.decode_form import decode_form
from rooflight.program.model_attention import Heads
from rooflight.program.paged_blocks import (
    Pages,
    Rows,
    attend_blocks,
    merged,
    own_blocks,
    read,
    write,
)
from rooflight.program.paged_kernel import attend_ragged, ragged_can
from rooflight.program.paged_native import attend_natively, native_can
from rooflight.program.paged_rows import attend_by_row, read_block
from rooflight.program.products import Scope
from rooflight.program.shardings import map_blocks, spec_of
from rooflight.specs.model import Attention

_LATENT = ("latent", "k_rope")
Paged = tuple[Pages, jax.Array, Rows]  # with the number of a layer


def attend_pages(
    scope: Scope, spec: Attention, heads: Heads, *, pages: Pages, layer: jax.Array, rows: Rows
) -> tuple[jax.Array, Pages]:
    """attended_heads of the new tokens, and the pages with their keys and values in them."""
    assert scope.block is not None
    place = place_of(scope.pins, scope.block)
    weighted = scope.pin("attention.mix")
    attend_to = _latent if spec.latent else _grouped
    by_row = PartitionSpec(place.rows or None)
    rows = Rows(*(jax.reshard(x, by_row) for x in rows))
    with jax.named_scope("attention.softmax"):
        attended, pages = attend_to(scope, spec, heads, place, (pages, layer, rows))
    with jax.named_scope("attention.mix"):
        for tensor in weighted.result[1:]:
            attended = jax.reshard(attended, spec_of(tensor))
    return attended, pages


def _paged_specs(
    paged: Paged, place: Place
) -> tuple[dict[str, PartitionSpec], PartitionSpec, PartitionSpec]:
    """Specs of pages, of the layer's number and of what there is one of a row."""
    pages = {n: jax.typeof(x).sharding.spec for n, x in paged[0].items()}
    return pages, PartitionSpec(), PartitionSpec(place.rows or None)


def kv_entry(scope: Scope, heads: Heads) -> jax.Array:
    """Each head's key, then its value [B,T,2K,H], where attention takes them."""
    k = scope.along(heads.k[0], scope.pin("attention.scores").operands[1])
    v = scope.along(heads.v, scope.pin("attention.mix").operands[1])
    return jnp.stack([k, v], 3).reshape(*k.shape[:2], -1, k.shape[-1])


def latent_entries(heads: Heads, place: Place) -> tuple[jax.Array, jax.Array]:
    """The latent [B,T,R] and the turned key [B,T,P] that all heads share."""
    assert heads.latent is not None
    both = (heads.latent, heads.k[1])
    latent, k_rope = (jax.reshard(x, place.latent) for x in both)
    return latent, k_rope


def _grouped(
    scope: Scope, spec: Attention, heads: Heads, place: Place, paged: Paged
) -> tuple[jax.Array, Pages]:
    q = scope.along(heads.q[0], scope.pin("attention.scores").operands[0])
    by_head = PartitionSpec(place.heads or None, place.groups or None)
    sinks = None
    if spec.has_sinks:
        sinks = jax.reshard(scope.weights["attention.Sinks"].astype(scope.dtype), by_head)
    queries = PartitionSpec(*place.kv, place.groups or None)
    specs = _paged_specs(paged, place)
    ways = math.prod(scope.pins.axes[a] for a in place.heads)
    spread = spread_of(paged[0], place)
    can = ragged_can(spec, q, paged[0], num_kv_heads=spec.num_kv_heads // ways)
    takes_kernel = can and not spread
    # As the next product takes them: there and then, the sum over `spread` is half the bytes.
    is_scattered = bool(spread) and scope.pin("attention.mix").result[-1].axes_of("G") == spread
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
    rows: Rows,
    *,
    spec: Attention,
    place: Place,
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
    scope: Scope, spec: Attention, heads: Heads, place: Place, paged: Paged
) -> tuple[jax.Array, Pages]:
    pins = [scope.pin(n) for n in ("attention.scores", "attention.rope_scores")]
    q, q_rope = (scope.along(x, pin.operands[0]) for x, pin in zip(heads.q, pins, strict=True))
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
    rows: Rows,
    *,
    spec: Attention,
    place: Place,
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

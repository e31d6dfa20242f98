"""Inference: a prompt or a chunk of one, one token per row, a few draft tokens per row.

In: weights, a paged cache, tokens and where they are. Out: logits[B,T,V] or those of each row's
last token, and the cache. Functions to jit under the mesh of a program, their cache donated.

    extend    tokens[B,T], cache -> h[B,T,D], cache              T = 1, a chunk, draft tokens

The cache is carried through the layers and written in place. Weights may be stacked, for a scan
over layers, or `Unrolled`.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from rooflight.models.spec import Attention
from rooflight.program.decode.cache import Layers
from rooflight.program.decode.form import Unrolled
from rooflight.program.matmuls import Scope
from rooflight.program.model.attention import Heads
from rooflight.program.model.forward import Program, embed, finish, forward_block, frame_scope
from rooflight.program.model.layers import softcapped
from rooflight.program.model.params import Tree
from rooflight.program.paged.attend import attend_pages
from rooflight.program.paged.blocks import PagedBatch, Pages

Weights = tuple[dict[str, jax.Array], ...]  # of a run: one dict a block of its pattern


def extend(
    program: Program, params: Tree, cache: Layers, tokens: jax.Array, rows: PagedBatch
) -> tuple[jax.Array, Layers]:
    """tokens[B,T] after what the cache has of their rows -> h[B,T,D], and the cache with them."""
    program = replace(program, is_inference=True)
    positions = rows.positions(tokens.shape[1])
    x = embed(program, params, tokens, positions)
    written: list[tuple[Pages, ...]] = []
    for run in range(len(program.model.layers)):
        x, pages = _extend_run(program, run, params.layers[run], (x, cache[run]), rows)
        written.append(pages)
    return finish(program, params, x), tuple(written)


def _extend_run(
    program: Program,
    run: int,
    weights: Weights | Unrolled,
    state: tuple[jax.Array, tuple[Pages, ...]],
    rows: PagedBatch,
) -> tuple[jax.Array, tuple[Pages, ...]]:
    blocks, specs = program.model.layers[run].blocks, program.specs.layers[run]
    positions = rows.positions(state[0].shape[1])

    def pattern(
        state: tuple[jax.Array, tuple[Pages, ...]], mine: tuple[Weights, jax.Array]
    ) -> tuple[tuple[jax.Array, tuple[Pages, ...]], None]:
        (x, pages), (weights, layer) = state, mine
        written: list[Pages] = []
        for i, block in enumerate(blocks):

            def memory(
                scope: Scope, spec: Attention, heads: Heads, *, pages: Pages = pages[i]
            ) -> jax.Array:
                out, new = attend_pages(scope, spec, heads, pages=pages, layer=layer, rows=rows)
                written.append(new)
                return out

            x = forward_block(
                program, block, specs[i], weights[i], x, memory=memory, positions=positions
            )
        return (x, tuple(written)), None

    if isinstance(weights, Unrolled):
        for layer, mine in enumerate(weights):
            state, _ = pattern(state, (mine, jnp.int32(layer)))
        return state
    layers = jnp.arange(program.model.layers[run].times)
    return lax.scan(pattern, state, (weights, layers))[0]


def generate(
    program: Program,
    params: Tree,
    cache: Layers,
    tokens: jax.Array,
    positions: jax.Array,
    tables: jax.Array,
) -> tuple[jax.Array, Layers]:
    """One token [B] a row at its position [B]: the logits [B,V] after it, and the cache with it.

    A row whose position is negative has no sequence: nothing is written for it.
    """
    starts, lengths = jnp.maximum(positions, 0), (positions >= 0).astype(jnp.int32)
    rows = PagedBatch(starts, lengths, tables)
    h, cache = extend(program, params, cache, tokens[:, None], rows)
    return _logits(program, params, h)[:, 0], cache


def prefill_chunk(
    program: Program, params: Tree, cache: Layers, tokens: jax.Array, rows: PagedBatch
) -> tuple[jax.Array, Layers]:
    """The next part tokens[B,T] of each row's prompt: logits [B,V] after it, and the cache."""
    h, cache = extend(program, params, cache, tokens, rows)
    return _last_logits(program, params, h, rows.lengths), cache


def score(
    program: Program, params: Tree, cache: Layers, tokens: jax.Array, rows: PagedBatch
) -> tuple[jax.Array, Layers]:
    """The logits [B,T,V] after each of a few tokens per row, and the cache with all of them."""
    h, cache = extend(program, params, cache, tokens, rows)
    return _logits(program, params, h), cache


def _logits(program: Program, params: Tree, h: jax.Array) -> jax.Array:
    scope = frame_scope(replace(program, is_inference=True), params)
    found = scope.matmul("head.logits", h)
    return softcapped(found.astype(jnp.float32), program.model.softcap)


def _last_logits(program: Program, params: Tree, h: jax.Array, lengths: jax.Array) -> jax.Array:
    """Those of each row's last token: the head reads one position a row."""
    spec = jax.typeof(h).sharding.spec
    place = PartitionSpec(spec[0], None, spec[2])
    at = jax.reshard(jnp.maximum(lengths - 1, 0), PartitionSpec(spec[0]))
    h = jax.reshard(h, place)
    h = jnp.take_along_axis(h, at[:, None, None], 1)
    return _logits(program, params, h)[:, 0]

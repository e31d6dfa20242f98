"""Whole prompts into the paged cache, each device taking what belongs to its blocks.

    kept[L,B_X,T,...] -> AllGather_X -> kept[L,B,T,...] -> pages[L,N_X,S,...] at blocks[B,T/S]

In: a cache, what `prefill` kept, ids of blocks. Out: the cache. Also what every write shares: ids
as a device counts its own blocks, and values in the dtype of the cache.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from rooflight.algebra.notation import Axes
from rooflight.program.decode.cache import SCALE, Layers, axes_in
from rooflight.program.quantized import FORMATS, quantize
from rooflight.program.shardings import map_blocks


def insert(cache: Layers, kept: Layers, blocks: jax.Array) -> Layers:
    """Writes what `prefill` kept [L,B,T,...] to blocks [B, T / S rounded up] of the cache.

    Rows come from wherever they were computed to the devices that have their blocks. Positions
    after the end of a row, up to the end of its last block, are written too and never read.
    """

    def layer(pages: dict[str, jax.Array], kept: dict[str, jax.Array]) -> dict[str, jax.Array]:
        specs = {n: jax.typeof(x).sharding.spec for n, x in pages.items()}
        # All of the rows to all devices that split them: any row may be for any of these.
        whole = {n: PartitionSpec(None, None, *specs[n][2:]) for n in kept}
        moved = {n: jax.reshard(x, whole[n]) for n, x in kept.items()}
        rows = axes_in(specs[next(iter(kept))][1])
        every = PartitionSpec(None, None)
        run = map_blocks(partial(_insert, rows=rows), (specs, whole, every), specs)
        return run(pages, moved, jax.reshard(blocks, every))

    return tuple(
        tuple(layer(p, k) for p, k in zip(*both, strict=True))
        for both in zip(cache, kept, strict=True)
    )


def local_ids(ids: jax.Array, num_blocks: int, rows: Axes) -> jax.Array:
    """Ids of blocks as a device counts its own, `num_blocks` where the block is not its own."""
    mine = ids - (lax.axis_index(rows) * num_blocks if rows else 0)
    return jnp.where((mine >= 0) & (mine < num_blocks), mine, num_blocks)


def stored_parts(pages: dict[str, jax.Array], name: str, values: jax.Array) -> dict[str, jax.Array]:
    """Values as the pages store them: in their dtype, or quantized beside scales."""
    stored = pages[name].dtype
    if name + SCALE not in pages:
        return {name: values.astype(stored)}
    dtype = next(n for n, (kind, _) in FORMATS.items() if jnp.dtype(kind) == stored)
    few = quantize(values, dtype)
    return {name: few.values, name + SCALE: few.scale}


def _insert(
    pages: dict[str, jax.Array], kept: dict[str, jax.Array], blocks: jax.Array, *, rows: Axes
) -> dict[str, jax.Array]:
    found: dict[str, jax.Array] = {}
    for name, values in kept.items():
        _, num_blocks, size, *_ = pages[name].shape
        ids = local_ids(blocks, num_blocks, rows)
        pads = [(0, 0)] * values.ndim
        pads[2] = (0, blocks.shape[1] * size - values.shape[2])
        whole = jnp.pad(values, pads)
        cut = whole.reshape(*whole.shape[:2], -1, size, *whole.shape[3:])
        for part, stored in stored_parts(pages, name, cut).items():
            found[part] = pages[part].at[:, ids].set(stored, mode="drop")
    return found

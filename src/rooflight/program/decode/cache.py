"""The paged cache: keys and values in blocks of positions, which sequences take as they grow.

    kv[L,N_X,S,2K_Y,H]                      grouped queries: each head's key, then its value
    latent[L,N_X,S,R], k_rope[L,N_X,S,P]    latent attention: what all heads share

N blocks of S positions for each of L layers. Over axes Z that split neither rows nor heads, the
blocks of a row may be spread, kv[L,N_XZ,S,2K_Y,H]: its positions are then split over Z.

A sequence has a row of block ids, its table: position p is in block table[p // S], at p % S. The
blocks are split over the axes of the batch and the kv heads over theirs, so a sequence must take
its blocks from those of its own devices: of N blocks and B rows split X ways, row b has the part
b X // B. An id outside 0..N-1 is no block: what is written to it is dropped.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from rooflight.algebra.notation import Axes
from rooflight.errors import UnknownNameError, UsageError
from rooflight.models.layout.constraints import Constraints
from rooflight.models.spec import Attention, Block
from rooflight.program.model.forward import Program
from rooflight.program.model.params import JAX_DTYPES
from rooflight.program.quantized import FORMATS, quantize

# Arrays, or what stands for them, by [run][block of its pattern][name], as weights are.
Layers = tuple[tuple[dict[str, Any], ...], ...]
SCALE = ".scale"  # ends the name of the scales of a quantized array
_FEW_BITS = ("int8", "fp8")  # of `FORMATS`


class CacheAxes(NamedTuple):
    """The axes of a layer's attention: of rows, of kv heads, of the groups of each."""

    rows: Axes
    heads: Axes
    groups: Axes

    @property
    def kv(self) -> PartitionSpec:
        """Of an array [B,T,K,...] or, with blocks for rows, [N,S,K,...]."""
        return PartitionSpec(self.rows or None, None, self.heads or None)

    @property
    def latent(self) -> PartitionSpec:
        """Of an array [B,T,R]: every device of a row has all of it."""
        return PartitionSpec(self.rows or None, None)


def place_of(constraints: Constraints, block: int) -> CacheAxes:
    """Where attention of a block runs, which is where its cache lies."""
    queries = constraints.ops[block, "attention.scores"].factors[0]
    if "N" in queries.dims:
        return CacheAxes(queries.axes_of("B"), queries.axes_of("N"), ())
    return CacheAxes(*(queries.axes_of(d) for d in "BKG"))


def check_rows_only(constraints: Constraints) -> None:
    """Raises if a layout splits what a step of one token a row does not have."""
    rules = (constraints.layout.stream, constraints.layout.inner, constraints.layout.scores)
    if constraints.layout.stages or any(rule.get("T") for rule in rules):
        raise UsageError(
            f"layout {constraints.layout.text} splits positions or layers; new tokens and their"
            " cache are split by rows and heads",
            hint="use a layout of dp, fsdp, tp, ws or ep, such as dp=X,tp=Y",
        )


def entry_shapes(attention: Attention) -> dict[str, tuple[int, ...]]:
    """What one position leaves in the cache of a layer."""
    if attention.latent:
        return {"latent": (attention.latent.kv_rank,), "k_rope": (attention.latent.rope_dim,)}
    return {"kv": (2 * attention.num_kv_heads, attention.head_dim)}


def abstract_cache(
    program: Program,
    mesh: Mesh | AbstractMesh,
    *,
    num_blocks: int,
    block_size: int,
    dtype: str | None = None,
    spread: Axes = (),
) -> Layers:
    """Shapes, dtypes and shardings of a cache, in the dtype of the computation unless told.

    The blocks of a row are spread over the axes `spread`: its positions are split over them.
    """
    check_rows_only(program.constraints)
    stored = program.compute if dtype is None else dtype

    def leaves(block: Block, times: int) -> dict[str, jax.ShapeDtypeStruct]:
        where = place_of(program.constraints, program.model.blocks.index(block))
        _check_spread(spread, where, program.constraints)
        _check_even(num_blocks, where.rows + spread, program.constraints)
        whole = where.latent if block.attention.latent else where.kv
        spec = PartitionSpec(None, where.rows + spread or None, *whole[1:])
        sharding = NamedSharding(mesh, spec)
        found: dict[str, jax.ShapeDtypeStruct] = {}
        for name, entry in entry_shapes(block.attention).items():
            for part, kind, tail in _stored_as(name, entry, stored):
                shape = (times, num_blocks, block_size, *tail)
                found[part] = jax.ShapeDtypeStruct(shape, kind, sharding=sharding)
        return found

    return tuple(tuple(leaves(b, run.times) for b in run.blocks) for run in program.model.layers)


def _stored_as(
    name: str, entry: tuple[int, ...], dtype: str
) -> Iterator[tuple[str, Any, tuple[int, ...]]]:
    if dtype in JAX_DTYPES:
        yield name, JAX_DTYPES[dtype], entry
        return
    if dtype not in _FEW_BITS:
        raise UnknownNameError("dtype of a cache", dtype, (*JAX_DTYPES, *_FEW_BITS))
    yield name, FORMATS[dtype][0], entry
    yield name + SCALE, jnp.float32, (*entry[:-1], 1)


def _check_even(num_blocks: int, rows: Axes, constraints: Constraints) -> None:
    ways = math.prod(constraints.axes[a] for a in rows)
    if num_blocks % ways:
        raise UsageError(
            f"{num_blocks} blocks do not split {ways} ways over {', '.join(rows)}",
            hint=f"give {-(-num_blocks // ways) * ways} blocks",
        )


def _check_spread(spread: Axes, where: CacheAxes, constraints: Constraints) -> None:
    taken = where.rows + where.heads + where.groups
    if any(a in taken or a not in constraints.axes for a in spread):
        free = [a for a in constraints.axes if a not in taken]
        raise UsageError(
            f"positions cannot be spread over {', '.join(spread)}: rows and heads have "
            f"{', '.join(taken) or 'no axes'} of {', '.join(constraints.axes)}",
            hint=f"spread over {', '.join(free)}" if free else "spread over no axes",
        )


def spread_of(pages: dict[str, jax.Array], place: CacheAxes) -> Axes:
    """The axes over which pages have the positions of a row, read off their type."""
    spec = jax.typeof(next(iter(pages.values()))).sharding.spec
    return tuple(a for a in axes_in(spec[1]) if a not in place.rows)


def init_cache(
    program: Program,
    *,
    num_blocks: int,
    block_size: int,
    dtype: str | None = None,
    spread: Axes = (),
) -> Layers:
    """An empty cache on the mesh that is set."""
    leaves = abstract_cache(
        program,
        jax.sharding.get_abstract_mesh(),
        num_blocks=num_blocks,
        block_size=block_size,
        dtype=dtype,
        spread=spread,
    )

    def empty(leaf: jax.ShapeDtypeStruct) -> jax.Array:
        assert isinstance(leaf.sharding, NamedSharding)
        return jnp.zeros(leaf.shape, leaf.dtype, out_sharding=leaf.sharding.spec)

    return jax.jit(lambda: jax.tree.map(empty, leaves))()


def axes_in(entry: str | tuple[str, ...] | None) -> Axes:
    """The axes that one entry of a partition spec names."""
    return () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)


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

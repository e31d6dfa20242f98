"""Programs about which we claim something, to be compiled: what goes beside matmuls."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from rooflight.models.graph.ops import Mask
from rooflight.program.attention.gathered import gathered_attend
from rooflight.program.attention.kernels import attend
from rooflight.program.attention.ring import ring_attend
from rooflight.program.attention.tile import How
from rooflight.program.collective_matmul.matmul import all_gather_matmul, matmul_reduce_scatter

Sizes = tuple[int, int, int]  # I, J and K
SIZES = (4096, 8192, 8192)
Built = tuple[Any, tuple[Any, ...]]


def gather_matmul(mesh: Mesh, *, is_collective: bool, sizes: Sizes = SIZES) -> Built:
    """A[I_Y,J] * B[J,K_Y] -> C[I,K_Y], block by block or gathered first."""

    def plain(a: jax.Array, b: jax.Array) -> jax.Array:
        return jax.lax.all_gather(a, "Y", tiled=True) @ b

    local = partial(all_gather_matmul, axis="Y", dim="rows") if is_collective else plain
    return _jitted(mesh, local, (P("Y", None), P(None, "Y")), P(None, "Y"), sizes)


def matmul_scatter(mesh: Mesh, *, is_collective: bool, sizes: Sizes = SIZES) -> Built:
    """A[I,J_Y] * B[J_Y,K] -> C[I_Y,K], block by block or scattered last."""

    def plain(a: jax.Array, b: jax.Array) -> jax.Array:
        return jax.lax.psum_scatter(a @ b, "Y", tiled=True)

    local = partial(matmul_reduce_scatter, axis="Y", dim="rows") if is_collective else plain
    return _jitted(mesh, local, (P(None, "Y"), P("Y", None)), P("Y", None), sizes)


def ring_attention(mesh: Mesh, *, form: str, positions: int) -> Built:
    """Causal attention of so many positions of each device, with all gradients.

    Keys and values go around a ring, or are gathered first and their gradients scattered: for the
    kernel, or for plain jax.
    """
    how = How(Mask(), 128**-0.5)

    def gathered(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        k, v = (jax.lax.all_gather(x, "Y", axis=1, tiled=True) for x in (k, v))
        if form == "gathered":
            return gathered_attend(q, k, v, axis="Y", how=how)
        start = jax.lax.axis_index("Y") * q.shape[1]
        return attend(q, k, v, mask=how.mask, scale=how.scale, q_start=start, kernel="chunked")

    local = partial(ring_attend, axis="Y", how=how) if form == "ring" else gathered
    split = P(None, "Y")
    mapped = jax.shard_map(local, mesh=mesh, in_specs=split, out_specs=split)

    def loss(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return mapped(q, k, v).astype(jnp.float32).sum()

    length = positions * mesh.shape["Y"]
    sharding = NamedSharding(mesh, split)
    q = jax.ShapeDtypeStruct((1, length, 2, 4, 128), jnp.bfloat16, sharding=sharding)
    k = jax.ShapeDtypeStruct((1, length, 2, 128), jnp.bfloat16, sharding=sharding)
    return jax.jit(jax.grad(loss, argnums=(0, 1, 2))), (q, k, k)


def _jitted(mesh: Mesh, local: Any, given: tuple[P, P], made: P, sizes: Sizes) -> Built:
    run = jax.jit(jax.shard_map(local, mesh=mesh, in_specs=given, out_specs=made, check_vma=False))
    rows, contract, columns = sizes
    shapes = ((rows, contract), (contract, columns))
    return run, tuple(
        jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=NamedSharding(mesh, spec))
        for shape, spec in zip(shapes, given, strict=True)
    )

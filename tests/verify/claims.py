"""Programs about which we claim something, to be compiled: collective matmuls."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from rooflight.program.collective_matmul.matmul import all_gather_matmul, matmul_reduce_scatter

ROWS, CONTRACT, COLS = 4096, 8192, 8192


def gather_matmul(mesh: Mesh, *, is_collective: bool) -> tuple[Any, tuple[Any, ...]]:
    """A[I_Y,J] * B[J,K_Y] -> C[I,K_Y], block by block or gathered first."""

    def plain(a: jax.Array, b: jax.Array) -> jax.Array:
        return jax.lax.all_gather(a, "Y", tiled=True) @ b

    local = partial(all_gather_matmul, axis="Y", dim="rows") if is_collective else plain
    return _jitted(mesh, local, (P("Y", None), P(None, "Y")), P(None, "Y"))


def matmul_scatter(mesh: Mesh, *, is_collective: bool) -> tuple[Any, tuple[Any, ...]]:
    """A[I,J_Y] * B[J_Y,K] -> C[I_Y,K], block by block or scattered last."""

    def plain(a: jax.Array, b: jax.Array) -> jax.Array:
        return jax.lax.psum_scatter(a @ b, "Y", tiled=True)

    local = partial(matmul_reduce_scatter, axis="Y", dim="rows") if is_collective else plain
    return _jitted(mesh, local, (P(None, "Y"), P("Y", None)), P("Y", None))


def _jitted(
    mesh: Mesh, local: Any, given: tuple[P, P], made: P
) -> tuple[Any, tuple[jax.ShapeDtypeStruct, ...]]:
    run = jax.jit(jax.shard_map(local, mesh=mesh, in_specs=given, out_specs=made, check_vma=False))
    shapes = ((ROWS, CONTRACT), (CONTRACT, COLS))
    return run, tuple(
        jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=NamedSharding(mesh, spec))
        for shape, spec in zip(shapes, given, strict=True)
    )

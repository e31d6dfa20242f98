"""A product whose left operand is split: gathered first, or block by block around a ring.

`rooflight verify --fn labs/ring.py:build --on v5e:2x4 --mesh X=8` asks the TPU compiler about it.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

ROWS, COLS = 8192, 65536  # of the layer that the TPU compiler is asked about


def gathered(a: jax.Array, b: jax.Array) -> jax.Array:
    """A[I_X,J] * B[J,K_X] -> C[I,K_X]: wait for all of A, then multiply."""
    return lax.all_gather(a, "X", tiled=True) @ b


def around(a: jax.Array, b: jax.Array) -> jax.Array:
    """The same: while a block is multiplied, the next one comes from the neighbour."""
    ways, here = lax.axis_size("X"), lax.axis_index("X")
    rows = a.shape[0]
    back = [((i + 1) % ways, i) for i in range(ways)]
    result = lax.pcast(jnp.zeros((ways * rows, b.shape[1]), a.dtype), "X", to="varying")
    for hop in range(ways):
        start = (here + hop) % ways * rows
        coming = lax.ppermute(a, "X", back) if hop < ways - 1 else a
        result = lax.dynamic_update_slice(result, a @ b, (start, 0))
        a = coming
    return result


def build(mesh: Mesh) -> tuple[object, tuple[jax.ShapeDtypeStruct, ...]]:
    """Both matmuls of a large layer, for `rooflight verify`."""

    def like(shape: tuple[int, int], *axes: str | None) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=NamedSharding(mesh, P(*axes)))

    specs = P("X", None), P(None, "X")
    run = jax.shard_map(around, mesh=mesh, in_specs=specs, out_specs=P(None, "X"))
    return jax.jit(run), (like((ROWS, ROWS), *specs[0]), like((ROWS, COLS), *specs[1]))

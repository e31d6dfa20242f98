# pyright: reportUnknownParameterType=false
"""Matmuls inside `jax.shard_map`, one a line, in every way that a region is given its parts.

The lines whose matmuls are really repeated end in `alike over` and the axis.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

P = PartitionSpec
SIZE = 2048


def build(mesh: Mesh) -> tuple[Any, tuple[Any, ...]]:
    """x[SIZE,SIZE] times w[SIZE,SIZE] again and again, results side by side."""
    mapped = partial(jax.shard_map, mesh=mesh)
    loose = partial(mapped, check_vma=False)
    rows, cols, both, whole = P("X", None), P(None, "Y"), P("X", "Y"), P(None, None)

    def split(x: jax.Array, w: jax.Array) -> jax.Array:
        return mapped(lambda x, w: x @ w, in_specs=(rows, cols), out_specs=both)(x, w)

    def summed(x: jax.Array, w: jax.Array) -> jax.Array:
        def local(x: jax.Array, w: jax.Array) -> jax.Array:
            return jax.lax.psum(x @ w, "Y")

        return mapped(local, in_specs=(both, P("Y", None)), out_specs=rows)(x, w)

    def in_a_loop(x: jax.Array, w: jax.Array) -> jax.Array:
        def local(x: jax.Array, w: jax.Array) -> jax.Array:
            return jax.lax.scan(lambda x, _: (x @ w, None), x, length=3)[0]

        every = P(("X", "Y"), None)
        return mapped(local, in_specs=(every, whole), out_specs=every)(x, w)

    def over_one_axis(x: jax.Array, w: jax.Array) -> jax.Array:
        def local(x: jax.Array, w: jax.Array) -> jax.Array:
            return x @ w

        region = mapped(local, in_specs=(rows, whole), out_specs=rows, axis_names={"X"})
        return region(x, jax.lax.with_sharding_constraint(w, NamedSharding(mesh, cols)))

    def in_another(x: jax.Array, w: jax.Array) -> jax.Array:
        def local(x: jax.Array, w: jax.Array) -> jax.Array:
            return x @ w

        inner = jax.shard_map(local, in_specs=(whole, cols), out_specs=cols, axis_names={"Y"})
        outer = partial(mapped, in_specs=(rows, whole), out_specs=rows, axis_names={"X"})
        pinned = jax.lax.with_sharding_constraint(w, NamedSharding(mesh, cols))
        return outer(lambda x, w: inner(x, w))(x, pinned)

    def by_index(x: jax.Array, w: jax.Array) -> jax.Array:
        def local(x: jax.Array, w: jax.Array) -> jax.Array:
            size = SIZE // mesh.shape["Y"]
            own = jax.lax.dynamic_slice_in_dim(w, jax.lax.axis_index("Y") * size, size, axis=1)
            return x @ own

        return mapped(local, in_specs=(rows, whole), out_specs=both)(x, w)

    def by_scatter(x: jax.Array, w: jax.Array) -> jax.Array:
        def local(x: jax.Array, w: jax.Array) -> jax.Array:
            own = jax.lax.psum_scatter(w, "Y", scatter_dimension=1, tiled=True)
            return x @ own

        return loose(local, in_specs=(rows, whole), out_specs=both)(x, w)

    def alike(x: jax.Array, w: jax.Array) -> jax.Array:
        def local(x: jax.Array, w: jax.Array) -> jax.Array:
            return x @ w  # alike over Y

        return mapped(local, in_specs=(rows, whole), out_specs=rows)(x, w)

    def alike_outside(x: jax.Array, w: jax.Array) -> jax.Array:
        w = jax.lax.with_sharding_constraint(w, NamedSharding(mesh, whole))
        y = x @ w  # alike over Y
        return jax.lax.with_sharding_constraint(y, NamedSharding(mesh, rows))

    every = (split, summed, in_a_loop, over_one_axis, in_another, by_index, by_scatter)

    def step(x: jax.Array, w: jax.Array) -> list[jax.Array]:
        return [one(x + at, w) for at, one in enumerate((*every, alike, alike_outside))]

    like = partial(jax.ShapeDtypeStruct, (SIZE, SIZE), jnp.bfloat16)
    x, w = like(sharding=NamedSharding(mesh, rows)), like(sharding=NamedSharding(mesh, cols))
    return jax.jit(step), (x, w)

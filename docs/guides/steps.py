# pyright: reportUnknownMemberType=false
"""Two layers of a feed-forward model, split over a mesh, with one constraint that was forgotten."""

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

TOKENS, D, F = 32768, 4096, 16384


def build(mesh: Mesh) -> tuple[object, tuple[object, ...]]:
    """What verify calls: the function, and a tuple of its abstract arguments."""

    def put(x: jax.Array, *axes: str | None) -> jax.Array:
        return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P(*axes)))

    def loss(layers: list[tuple[jax.Array, jax.Array]], x: jax.Array) -> jax.Array:
        for w_in, w_out in layers:
            hidden = put(jax.nn.silu(x @ w_in), "X", None)  # the "Y" of F is missing here
            x = put(x + hidden @ w_out, "X", None)
        return jnp.mean(x.astype(jnp.float32) ** 2)

    def like(shape: tuple[int, ...], *axes: str | None) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=NamedSharding(mesh, P(*axes)))

    layer = like((D, F), "X", "Y"), like((F, D), "Y", "X")
    return jax.jit(jax.value_and_grad(loss)), ([layer] * 2, like((TOKENS, D), "X", None))

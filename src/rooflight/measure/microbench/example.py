"""One feed-forward layer, as `rooflight intensity MODULE:build` takes it."""

import jax
import jax.numpy as jnp

_TOKENS, _D, _F = 4096, 8192, 28672


def feed_forward(x: jax.Array, w_in: jax.Array, w_out: jax.Array) -> jax.Array:
    """x[B,D] * W_in[D,F], activated, * W_out[F,D]."""
    return jax.nn.relu(x @ w_in) @ w_out


def build() -> tuple[object, tuple[jax.ShapeDtypeStruct, ...]]:
    """A function and shapes that stand for its arguments."""
    shapes = ((_TOKENS, _D), (_D, _F), (_F, _D))
    return feed_forward, tuple(jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes)

"""Trees of arrays that are stacked in dim 0: taking an entry out, storing in it."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

Tree = Any  # a pytree of arrays: jax has no type for it


def take(tree: Tree, index: jax.Array | int) -> Tree:
    """Entry `index` of every array."""
    return jax.tree.map(lambda a: lax.dynamic_index_in_dim(a, index, 0, keepdims=False), tree)


def put(tree: Tree, entry: jax.Array, values: Tree) -> Tree:
    """Stores in entry `entry` of every array; a negative entry stores nothing."""
    at = jnp.maximum(entry, 0)
    return jax.tree.map(
        lambda a, old, new: lax.dynamic_update_index_in_dim(
            a, jnp.where(entry < 0, old, new), at, 0
        ),
        *(tree, take(tree, at), values),
    )

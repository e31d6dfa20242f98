"""Layers of one kind as the stages of a pipeline: cut, joined again, and scanned over.

W[L,D,F] -> W[S_P,l,D,F]   with l = ceil(L / S); a stage with fewer layers ends in padding
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import lax

from rooflight.models.layout.slots import Schedule
from rooflight.program.pipeline.table import stage_order

Tree = Any  # a pytree of arrays: jax has no type for it
Places = npt.NDArray[np.int32]  # [stages, layers per stage]: which layer is there
PADDING = -1


def layer_places(num_layers: int, table: Schedule) -> Places:
    """Which layer is where, the first stages one longer, stages in the order of `stage_order`."""
    cuts = np.array_split(np.arange(num_layers, dtype=np.int32), table.num_stages)
    places = np.full((table.num_stages, len(cuts[0])), PADDING, np.int32)
    for row, stage in enumerate(stage_order(table)):
        places[row, : len(cuts[stage])] = cuts[stage]
    return places


def cut_layers(layers: Tree, places: Places) -> Tree:
    """Stacked layers [L, ...] as stages [S, l, ...]."""
    is_padding = places == PADDING

    def cut(a: jax.Array) -> jax.Array:
        at = np.where(is_padding, 0, places)
        mask = is_padding.reshape(places.shape + (1,) * (a.ndim - 1))
        return jnp.where(mask, jnp.zeros((), a.dtype), a[at])

    return jax.tree.map(cut, layers)


def join_layers(stages: Tree, places: Places) -> Tree:
    """Stages [S, l, ...] back as layers [L, ...]: of gradients, to compare."""
    num_layers = int(places.max()) + 1
    row, column = np.array([np.argwhere(places == i)[0] for i in range(num_layers)]).T
    return jax.tree.map(lambda a: a[row, column], stages)


def scan_layers(layer_fn: Callable[[Tree, Tree], Tree]) -> Callable[[Tree, Tree, jax.Array], Tree]:
    """`stage_fn(weights[l, ...], x, is_real[l])` for `run_schedule(..., fixed=is_real)`."""

    def stage(weights: Tree, x: Tree, is_real: jax.Array) -> Tree:
        def step(x: Tree, layer: tuple[Tree, jax.Array]) -> tuple[Tree, None]:
            y = layer_fn(layer[0], x)
            return jax.tree.map(lambda new, old: jnp.where(layer[1], new, old), y, x), None

        return lax.scan(step, x, (weights, is_real))[0]

    return stage

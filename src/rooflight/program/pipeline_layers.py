# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false
# jax annotates its own functions only in part.
"""Layers as the stages of a pipeline: how many each gets, and a stage as a scan over its own.

    W[L,D,F] -> W[S_P,l,D,F]   with l = ceil(L / S); a stage with fewer layers ends in padding

All devices run one program, so every stage is l layers long. A layer of padding has weights of
zero, is run like any other and its result is left out (`is_real`): it costs the time of a layer
on the stages that have one, which is what an uneven cut costs anyway, and its gradient is zero.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import lax

from rooflight.errors import UsageError
from rooflight.graph.pipeline import Schedule
from rooflight.program.pipeline_table import stage_order

Tree = Any  # a pytree of arrays: jax has no type for it
Places = npt.NDArray[np.int32]  # [stages, layers a stage]: which layer is there
PADDING = -1


def layer_places(num_layers: int, table: Schedule) -> Places:
    """Which layer is where, the first stages one longer, stages in the order of `stage_order`.

    >>> from rooflight.graph import make_schedule
    >>> layer_places(5, make_schedule("gpipe", stages=3, microbatches=1)).tolist()
    [[0, 1], [2, 3], [4, -1]]
    """
    if num_layers < table.num_stages:
        raise UsageError(
            f"{num_layers} layers cannot fill {table.num_stages} pipeline stages",
            hint=f"use at most {num_layers} stages, virtual ones counted",
        )
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
    """Stages [S, l, ...] back as layers [L, ...]: of gradients, or for a checkpoint."""
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

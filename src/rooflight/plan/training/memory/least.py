"""Bytes that a layout holds in any case, for many points at once: what exceeds the HBM is left out.

In: a chunk of points and a recipe. Out: a lower bound of what `memory` counts one by one.
"""

from collections.abc import Mapping
from functools import cache, lru_cache

import numpy as np

from rooflight.algebra.notation import Tensor
from rooflight.costs.mesh_sweep import Floats
from rooflight.plan.training.memory.framework import Framework
from rooflight.plan.training.memory.job import Microbatching, Recipe
from rooflight.plan.training.memory.remat import Remat
from rooflight.plan.training.time.stage_time import HEAD, stage_shares
from rooflight.plan.training.time.sweep import Points


class LeastMemory:
    """Bytes that a chip holds in any case: weights, gradients, optimizer, saved activations.

    Less than `memory` finds, which adds gathered weights and workspace and takes the worst
    stage: what exceeds the HBM here can be left out unseen.
    """

    def __init__(self, points: Points, recipe: Recipe, framework: Framework) -> None:
        self._points = points
        self._state = _state_bytes(points, recipe, framework) + np.zeros(len(points))

        @cache  # policies share most tensors
        def held(tensor: Tensor) -> Floats:
            return points.elements(points.layout.of_activation(tensor))

        nbytes, none = recipe.compute.bits_per_element / 8, np.zeros(len(points))
        self._saved = {
            name: {
                block: nbytes * sum(map(held, filter(framework.keeps, layer.tensors)), none)
                for block, layer in saved.items()
                if block != HEAD and not layer.on_host
            }
            for name, saved in points.sizes.saved.items()
        }

    def bytes(self, micro: Microbatching, remat: Remat) -> Floats:
        """On every point, for one option."""
        points = self._points
        order = points.sizes.graph.order
        first = [first_share(order, int(s), micro) for s in points.distinct_stages]
        saved = sum(
            (
                np.array([share.get(block, 0.0) for share in first])[points.stages_of] * saved
                for block, saved in self._saved[remat.name].items()
            ),
            np.zeros(1),
        )
        waiting = np.where(points.num_stages > 1, np.minimum(points.count, points.num_stages), 1)
        return self._state / points.num_stages + waiting * saved


@lru_cache(maxsize=4096)
def first_share(order: tuple[int, ...], stages: int, micro: Microbatching) -> Mapping[int, float]:
    if stages % 2 and micro.schedule == "dualpipe":
        return {}
    return stage_shares(order, stages, micro)[0]


def _state_bytes(points: Points, recipe: Recipe, framework: Framework) -> Floats:
    layout, scans = points.layout, framework.scans_layers
    summed = recipe.gradients or recipe.compute
    is_summed = points.count > 1 if scans or not recipe.gradients else np.ones(1, np.bool_)
    gradient = np.where(is_summed, summed.bits_per_element / 8, 0.0)
    spare = (*layout.inner.get("B", ()), *layout.inner.get("T", ()))
    total = np.zeros(1)
    for param in points.sizes.graph.params:
        placed = layout.of_weight(param.tensor)
        held = param.count * points.elements(placed)
        free = points.split(a for a in spare if a not in placed.sharded_over)
        optimizer = [d for d in (recipe.master, *recipe.moments) if d]
        total = total + held * recipe.weights.bits_per_element / 8
        total = total + held / free * (sum(d.bits_per_element for d in optimizer) / 8 + gradient)
        if scans and param.block is not None:  # stacked until the optimizer takes them
            total = total + held * recipe.weights.bits_per_element / 8
    return total

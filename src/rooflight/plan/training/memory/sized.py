"""Bytes on one chip of everything that pipeline stages are made of, each worked out once.

In: a `Job`. Out: `BlockBytes`. A stage only adds: so many layers of this block, one head.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from rooflight.algebra.notation import Tensor
from rooflight.algebra.shapes import local_shape, ways
from rooflight.dtypes import Dtype
from rooflight.models.layout.zero import split_state
from rooflight.plan.training.memory.in_flight import Gathered, backward_bytes, gathered, loss_bytes
from rooflight.plan.training.memory.job import Job, OnChip
from rooflight.plan.training.memory.template import Same, Stored, Template, WeightDot, template_of

AxisSizes = tuple[tuple[str, int], ...]
Shape = tuple[str, tuple[int, ...]]  # of a matmul's weight on one chip, with the op's name


@dataclass(frozen=True, slots=True)
class BlockBytes:
    """Bytes by block, and of both ends of the model."""

    template: Template
    state: Mapping[int | str, tuple[int, ...]]  # of a block's weights, and of both ends'
    saved: Mapping[int, int]
    backward: Mapping[int, int]
    gathered: Mapping[int | str, tuple[Gathered, ...]]
    shapes: Mapping[int | str, frozenset[Shape]]  # empty unless the framework asks for them
    head_saved: int
    head_gradient: int  # of the head's table, before it is scattered
    loss: int


def size_up(job: Job) -> BlockBytes:
    """Multiplies out the template of a job."""
    on, template = OnChip(job, job.sizes()), template_of(job)
    layers = template.layers.items()
    weights: dict[int | str, tuple[Stored, ...]] = {b: layer.weights for b, layer in layers}
    weights |= {"embedding": template.embedding, "head": template.head, "tied": template.tied}
    matmuls: dict[int | str, tuple[WeightDot, ...]] = {b: layer.matmuls for b, layer in layers}
    matmuls |= {"head": template.head_matmuls}
    stored = components(job)
    return BlockBytes(
        template,
        {b: tuple(_stored_bytes(c, w, job) for c in stored) for b, w in weights.items()},
        {b: on.saved(layer.saved, layer.beside) for b, layer in layers},
        {b: backward_bytes(layer, on) for b, layer in layers},
        {b: gathered(ps, on) for b, ps in matmuls.items()},
        {
            b: frozenset(_shape(p, job) for p in ps)
            for b, ps in matmuls.items()
            if job.framework.unread_gradients
        },
        on.total(template.head_saved),
        sum(on.nbytes(p.weight, job.recipe.compute) for p in template.head_matmuls),
        loss_bytes(on, template),
    )


def _shape(matmul: WeightDot, job: Job) -> Shape:
    """Experts are matrices of one shape."""
    local = local_shape(matmul.weight, job.graph.sizes, job.axes)
    pairs = zip(matmul.weight.dims, local, strict=True)
    return matmul.name, tuple(size for dim, size in pairs if dim.rstrip("0123456789") != "E")


@dataclass(frozen=True, slots=True)
class StateComponent:
    """Numbers stored of every parameter; `extra` axes split what the layout leaves on a chip."""

    name: str
    dtypes: tuple[Dtype, ...]
    extra: tuple[str, ...] = ()


def components(job: Job) -> tuple[StateComponent, ...]:
    """What the recipe and the framework store of a parameter, and what ZeRO splits."""
    recipe = job.recipe
    optimizer = job.data_axes if job.zero >= 1 else ()
    split = job.data_axes if job.zero >= 2 else ()
    is_copied = job.framework.copies_gradients and ways(job.data_axes, job.axes) > 1
    copies = _one(recipe.compute) if is_copied else ()
    # Gradients that are used up as they come still have to be added up over microbatches.
    summed = recipe.gradients or (recipe.compute if job.micro.count > 1 else None)
    if job.framework.scans_layers and job.micro.count == 1:
        summed = None  # those that the scan stacks are all there are
    return (
        StateComponent("weights", _one(recipe.weights), job.data_axes if job.zero >= 3 else ()),
        StateComponent("gradients", (*_one(summed), *copies), split),
        StateComponent("master weights", _one(recipe.master), optimizer),
        StateComponent("optimizer moments", recipe.moments, optimizer),
    )


def _one(dtype: Dtype | None) -> tuple[Dtype, ...]:
    return (dtype,) if dtype else ()


def _stored_bytes(component: StateComponent, weights: Iterable[Stored], job: Job) -> int:
    return sum(
        dtype.nbytes(_elements(stored, component.extra, job))
        for stored in weights
        for dtype in component.dtypes
    )


def _elements(stored: Stored, extra: tuple[str, ...], job: Job) -> int:
    """What a chip holds of a param; where ZeRO splits it flat, the last chip's part is shorter."""
    axes = tuple(job.axes.items())
    return _held(Same(job.graph), stored.placed, extra, axes, job.framework.splits_dims)


@lru_cache(maxsize=16_384)  # a search asks for the same weights on the same axes again and again
def _held(
    same: Same, placed: Tensor, extra: tuple[str, ...], sizes: AxisSizes, splits_dims: bool
) -> int:
    dims, axes = same.graph.sizes, dict(sizes)
    if splits_dims:
        return math.prod(local_shape(split_state(placed, extra, sizes=dims, axes=axes), dims, axes))
    local = math.prod(local_shape(placed, dims, axes))
    free = [axis for axis in extra if axis not in placed.sharded_over]
    return -(-local // ways(free, axes))

"""Bytes on one chip of everything that pipeline stages are made of, each worked out once.

In: a `Job`. Out: `BlockBytes`. A stage only adds: so many layers of this block, one head.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from rooflight.algebra.notation import Tensor
from rooflight.algebra.shapes import local_shape, ways
from rooflight.dtypes import DTYPES, Dtype
from rooflight.models.layout.zero import split_state
from rooflight.plan.file.record import Part
from rooflight.plan.training.memory.job import Job, OnChip
from rooflight.plan.training.memory.template import (
    Layer,
    Same,
    Stored,
    Template,
    WeightDot,
    template_of,
)
from rooflight.units import format_si

_F32 = DTYPES["f32"]

AxisSizes = tuple[tuple[str, int], ...]
Shape = tuple[str, tuple[int, ...]]  # of a matmul's weight on one chip, with the op's name


@dataclass(frozen=True, slots=True)
class Gathered:
    """A weight brought together for its matmul, in the compute dtype; no bytes if it is whole."""

    name: str
    nbytes: int


def gathered(matmuls: Iterable[WeightDot], on: OnChip) -> tuple[Gathered, ...]:
    """The weights of one layer, or of the head, in the order of their matmuls."""
    return tuple(Gathered(p.name, _gathered_bytes(p, on)) for p in matmuls)


def _gathered_bytes(matmul: WeightDot, on: OnChip) -> int:
    job = on.job
    flat = job.data_axes if job.zero >= 3 else ()
    if ways(tuple({*matmul.gathered_over, *flat}), job.axes) == 1:
        return 0
    return on.nbytes(matmul.weight, job.recipe.compute)


def gathered_part(job: Job, runs: Sequence[tuple[int, Sequence[Gathered]]]) -> Part:
    """The most that gathered weights take; `runs` are layers with how many there are of each."""
    if job.framework.keeps_weights and job.num_stages > 1:
        nbytes, what = _whole_stage(job, runs), "all weights of the stage, f32 gradients"
    elif job.framework.gathers_blocks:
        # Gradients are scattered in fp32, so that one takes as much as two weights in bf16.
        layers = [Gathered("layer", sum(g.nbytes for g in run)) for _, run in runs]
        nbytes, what = _pair(layers, gradients=2)[0], "two layers in a row, and an f32 gradient"
    else:
        nbytes, names = _pair([g for _, run in runs for g in run], gradients=1)
        what = f"{names}, and a gradient"
    if not nbytes:
        return Part("gathered weights", 0, "no weight is gathered for its matmul")
    because = f"{job.recipe.compute.name}: {what} before its scatter"
    return Part("gathered weights", nbytes, because)


def _pair(found: Sequence[Gathered], *, gradients: int) -> tuple[int, str]:
    """Two in a row, one in use and one ahead, and the gradient of the larger one."""
    most, names = 0, ""
    for first, second in zip([Gathered("", 0), *found], found, strict=False):
        nbytes = first.nbytes + second.nbytes + gradients * max(first.nbytes, second.nbytes)
        if nbytes > most:
            most, names = nbytes, " and ".join(g.name for g in (first, second) if g.nbytes)
    return most, names


def _whole_stage(job: Job, runs: Iterable[tuple[int, Sequence[Gathered]]]) -> int:
    weights = sum(count * g.nbytes for count, run in runs for g in run)
    return weights + weights * _F32.nbytes(1) // job.recipe.compute.nbytes(1)


def loss_dtypes(job: Job) -> tuple[Dtype, ...]:
    """Dtypes of the arrays as large as the logits that are in memory together."""
    framework = job.framework
    is_split = ways(job.layout.inner.get("V", ()), job.axes) > 1
    return framework.split_loss if is_split and framework.split_loss else framework.loss


def backward_bytes(layer: Layer, on: OnChip) -> int:
    """What a layer recomputes, and the gradients around its widest op."""
    return on.total(layer.recomputed) + max(map(on.total, layer.moments))


def workspace_part(job: Job, *, layer: int, loss: int | None) -> Part:
    """The loss and the backward pass of a layer are never in memory together."""
    at_layer = "a layer in its backward pass"
    if loss is None:
        return Part("workspace", layer, at_layer)
    dtypes = " + ".join(d.name for d in loss_dtypes(job))
    at_loss = f"logits and gradient at the loss ({dtypes})"
    if loss >= layer:
        return Part("workspace", loss, f"{at_loss}; {at_layer} takes {format_si(layer, 'B')}")
    return Part("workspace", layer, f"{at_layer}; {at_loss} take {format_si(loss, 'B')}")


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
        sum(on.nbytes(template.logits, dtype) for dtype in loss_dtypes(on.job)),
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

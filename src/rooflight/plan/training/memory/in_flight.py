"""What a chip holds only for a moment: gathered weights, the loss, one layer's backward pass.

In: placed tensors of a `Template` and the sizes of a job. Out: bytes of each layer, and from
these the `Part` of a pipeline stage, with the largest moment and its reason.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rooflight.algebra.shapes import ways
from rooflight.dtypes import DTYPES, Dtype
from rooflight.plan.file.record import Part
from rooflight.plan.training.memory.job import Job, OnChip
from rooflight.plan.training.memory.template import Layer, Template, WeightDot
from rooflight.units import format_si

_F32 = DTYPES["f32"]


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


def loss_bytes(on: OnChip, template: Template) -> int:
    """Logits and what is made of them until their gradient is there."""
    return sum(on.nbytes(template.logits, dtype) for dtype in loss_dtypes(on.job))


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

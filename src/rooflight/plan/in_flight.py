"""What a chip holds only for a moment: gathered weights, the loss, one layer's backward pass.

In: a `Job` and the ops of its layers. Out: `Part`s with the largest moment and its reason.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rooflight.algebra import Tensor, device_bytes, ways
from rooflight.graph import Op
from rooflight.plan.job import Job, kept_bytes, local_bytes
from rooflight.plan.remat import Kept, activations, is_score
from rooflight.units import format_si


@dataclass(frozen=True, slots=True)
class Part:
    """One component on one chip."""

    name: str
    nbytes: int
    because: str


@dataclass(frozen=True, slots=True)
class Layers:
    """The layers of one kind: what each keeps, and how many there are."""

    ops: tuple[Op, ...]
    kept: Kept
    count: int


@dataclass(frozen=True, slots=True)
class _Product:
    """A weight matmul as one chip does it, its operands brought together."""

    weight: Tensor
    activations: tuple[Tensor, ...]
    is_gathered: bool


def _product(op: Op, job: Job) -> _Product:
    """Axes that split the tokens before and after a product stay; a weight must lose these.

    All other axes are the weight's own: an activation is gathered to meet it, and its result
    scattered. The same follows from the four rules of `algebra`, without choosing between them.
    """
    inputs, result = activations(op), op.contraction.result
    (weight,) = (t for t in op.contraction.operands if t not in inputs)
    home = job.layout.of_weight(weight)
    tokens = _token_axes(inputs, weight, job) & _token_axes([result], weight, job)
    held = {d: tuple(a for a in home.axes_of(d) if a not in tokens) for d in weight.dims}

    def placed(tensor: Tensor) -> Tensor:
        axes = job.layout.of_activation(tensor)
        found = (held.get(d, tuple(a for a in axes.axes_of(d) if a in tokens)) for d in tensor.dims)
        return Tensor(tensor.name, tensor.dims, tuple(found))

    whole = Tensor(weight.name, weight.dims, tuple(held.values()))
    lost = [axis for axis in home.sharded_over if axis in tokens]
    return _Product(whole, tuple(map(placed, (*inputs, result))), ways(lost, job.axes) > 1)


def _token_axes(tensors: Iterable[Tensor], weight: Tensor, job: Job) -> set[str]:
    placed = (job.layout.of_activation(t) for t in tensors)
    return {a for t in placed for d in t.dims if d not in weight.dims for a in t.axes_of(d)}


def gathered_weights(job: Job) -> Part:
    """The most that two weights in a row and the gradient of the larger one take."""
    found = [(_gathered_bytes(op, job), op.name) for op in job.graph.ops if op.kind == "matmul"]
    most, names = 0, ""
    for (first, a), (second, b) in zip([(0, ""), *found], found, strict=False):
        nbytes = first + second + max(first, second)
        if nbytes > most:
            most, names = nbytes, " and ".join(n for n, size in ((a, first), (b, second)) if size)
    if not most:
        return Part("gathered weights", 0, "no weight is gathered for its product")
    because = f"{job.recipe.compute.name}: {names}, and a gradient before its scatter"
    return Part("gathered weights", most, because)


def _gathered_bytes(op: Op, job: Job) -> int:
    product = _product(op, job)
    if not product.is_gathered:
        return 0
    return device_bytes(product.weight, job.graph.sizes, job.axes, job.recipe.compute)


def workspace(job: Job, layers: Sequence[Layers]) -> Part:
    """The loss and the backward pass of a layer are never in memory together."""
    compute = job.recipe.compute
    logits = next(t for op in job.graph.ops if "V" in (t := op.contraction.result).dims)
    loss = sum(kept_bytes([logits], job, dtype) for dtype in job.loss)
    layer = max(kept_bytes(b.kept.remade, job, compute) + _widest(b.ops, job) for b in layers)
    at_loss = f"logits and gradient at the loss ({' + '.join(d.name for d in job.loss)})"
    at_layer = "a layer in its backward pass"
    if loss >= layer:
        return Part("workspace", loss, f"{at_loss}; {at_layer} takes {format_si(layer, 'B')}")
    return Part("workspace", layer, f"{at_layer}; {at_loss} take {format_si(loss, 'B')}")


def _widest(ops: Iterable[Op], job: Job) -> int:
    """Gradients of the result and of the activations of one op are in memory together."""
    return max(_op_bytes(op, job) for op in ops if op.kind != "elementwise")


def _op_bytes(op: Op, job: Job) -> int:
    if op.kind == "matmul":
        placed = _product(op, job).activations
        return sum(local_bytes(t, job, job.recipe.compute) for t in placed)
    ends = [*activations(op), op.contraction.result]
    return kept_bytes((t for t in ends if not is_score(t)), job, job.recipe.compute)

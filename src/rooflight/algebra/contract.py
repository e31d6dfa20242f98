"""Every legal way to multiply sharded tensors: the book's four cases, as one enumeration.

A strategy is a choice, for each mesh axis, of the dim of the *iteration space* that the axis
splits while the devices compute (or none: the axis computes the same thing everywhere). Each
operand is resharded to what the choice needs, the product is local, and the result, unreduced
over the axes that split a summed dim, is resharded to what was asked. Gathering the left or the
right operand, reducing or scattering afterwards, gathering before or after: all are such choices.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product

from rooflight.algebra.notation import Axes, Contraction, Tensor
from rooflight.algebra.reshard import reshard
from rooflight.algebra.steps import Step
from rooflight.errors import ShardingError


@dataclass(frozen=True, slots=True)
class Strategy:
    """A list of steps, and what each mesh axis splits during the local product."""

    contraction: Contraction
    roles: Mapping[str, str]  # axis -> dim, "" when replicated, "+" when an input's sum is carried
    steps: tuple[Step, ...]

    def __str__(self) -> str:
        return "\n".join(map(str, self.steps))

    @property
    def collectives(self) -> tuple[Step, ...]:
        return tuple(s for s in self.steps if s.is_collective)

    @property
    def matmul(self) -> Step:
        """The local matmul, which every strategy has once."""
        return next(s for s in self.steps if s.op == "einsum")

    def streams(self, step: Step) -> bool:
        """Whether a collective hands its pieces straight to the product, or takes them from it.

        Such a collective can run piece by piece under the product: the collective matmul.
        """
        touches = step.output in self.matmul.inputs or step.inputs[0] == self.matmul.output
        return step.op in ("all_gather", "reduce_scatter") and touches

    @property
    def reroutes(self) -> int:
        """How often a mesh axis moves one tensor more, permutes aside.

        The book's four cases move one tensor over an axis: an operand is gathered, or the result
        is reduced. Moving two over the same axis takes the axis to another dim for the product
        and back: in effect another layout, which XLA's partitioner seldom takes by itself.
        """
        moved = {
            (axis, step.output.name, step.output.dims)
            for step in self.collectives
            if step.op != "permute"
            for axis in step.axes
        }
        return sum(n - 1 for n in Counter(axis for axis, *_ in moved).values())


def strategies(
    contraction: Contraction, axis_sizes: Mapping[str, int] | None = None
) -> tuple[Strategy, ...]:
    """Enumerates every legal strategy, each once.

    >>> from rooflight.algebra.notation import parse_contraction
    >>> for s in strategies(parse_contraction("A[I,J] * B[J_X,K] -> C[I,K]")):
    ...     print([step.op for step in s.steps])
    ['slice', 'einsum', 'all_reduce']
    ['all_gather', 'einsum']
    """
    found: dict[tuple[Step, ...], Strategy] = {}
    for roles in _roles(contraction):
        for layout in _orders(contraction, roles):
            steps = _steps(contraction, roles, layout, axis_sizes)
            if steps is not None:
                found.setdefault(steps, Strategy(contraction, roles, steps))
    if not found:
        raise _impossible(contraction)
    return tuple(found.values())


def _roles(contraction: Contraction) -> Iterator[dict[str, str]]:
    """Every choice of what each axis splits."""
    axes = contraction.mesh_axes
    for choice in product(*(_choices(contraction, axis) for axis in axes)):
        yield dict(zip(axes, choice, strict=True))


def _choices(contraction: Contraction, axis: str) -> tuple[str, ...]:
    """The dims that hold the axis somewhere; carrying an input's pending sum; nothing.

    Nothing is left out where the result splits a dim over the axis: splitting that dim from the
    start needs no more traffic and does less work than slicing the result afterwards.
    """
    settled = _settled(contraction, axis)
    if settled:
        return (settled,)
    tensors = (*contraction.operands, contraction.result)
    dims = [d for t in tensors if (d := t.dim_of(axis))]
    pending = axis in contraction.result.unreduced
    if pending:
        dims += contraction.contracted
    if sum(axis in t.unreduced for t in contraction.operands) == 1:
        dims.append("+")
    if not pending and not contraction.result.dim_of(axis):
        dims.append("")
    return tuple(dict.fromkeys(dims))


def _settled(contraction: Contraction, axis: str) -> str:
    """The dim of an axis about which every tensor agrees (case 1): no other choice can win."""
    tensors = (*contraction.operands, contraction.result)
    dims = {d for t in tensors if (d := t.dim_of(axis))}
    if len(dims) != 1 or any(axis in t.unreduced for t in tensors):
        return ""
    dim = next(iter(dims))
    agreed = dim in contraction.result.dims and all(
        t.dim_of(axis) == dim for t in tensors if dim in t.dims
    )
    return dim if agreed else ""


def _orders(contraction: Contraction, roles: Mapping[str, str]) -> Iterator[dict[str, Axes]]:
    """The orders in which the axes of a dim may nest: those of any tensor that has them."""
    per_dim = [
        [(dim, order) for order in _orders_of(contraction, dim, roles)] for dim in contraction.dims
    ]
    for choice in product(*per_dim):
        yield dict(choice)


def _orders_of(contraction: Contraction, dim: str, roles: Mapping[str, str]) -> list[Axes]:
    chosen = [axis for axis, role in roles.items() if role == dim]
    if len(chosen) < 2:
        return [tuple(chosen)]
    orders: dict[Axes, None] = {}
    for tensor in (contraction.result, *contraction.operands):
        held = [a for a in tensor.axes_of(dim) if a in chosen]
        if held:
            orders[(*held, *(a for a in chosen if a not in held))] = None
    return list(orders) or [tuple(chosen)]


def _steps(
    contraction: Contraction,
    roles: Mapping[str, str],
    layout: Mapping[str, Axes],
    axis_sizes: Mapping[str, int] | None,
) -> tuple[Step, ...] | None:
    """Reshard the operands, multiply, reshard the result; None if a wanted sum never pends."""
    carried = [a for a, role in roles.items() if role == "+"]
    before: list[Step] = []
    inputs: list[Tensor] = []
    for operand in contraction.operands:
        wanted = _laid_out(operand, layout, tuple(a for a in carried if a in operand.unreduced))
        before += reshard(operand, wanted, axis_sizes)
        inputs.append(wanted)
    summed = tuple(a for dim in contraction.contracted for a in layout[dim])
    local = _laid_out(contraction.result, layout, (*summed, *carried))
    if set(contraction.result.unreduced) - set(local.unreduced):
        return None
    after = reshard(local, contraction.result, axis_sizes)
    return (*before, Step("einsum", tuple(inputs), local), *after)


def _laid_out(tensor: Tensor, layout: Mapping[str, Axes], unreduced: Axes) -> Tensor:
    axes = tuple(layout[d] for d in tensor.dims)
    return Tensor(tensor.name, tensor.dims, axes, tuple(sorted(unreduced)))


def _impossible(contraction: Contraction) -> ShardingError:
    axes = ", ".join(contraction.result.unreduced)
    return ShardingError(
        f"{contraction.result} cannot be unreduced over {axes}: no dim is summed over it"
        " and no input is pending over it",
        hint=f"ask for {contraction.result.with_unreduced(())}",
    )

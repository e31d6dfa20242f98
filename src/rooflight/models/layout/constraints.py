"""`Constraints`: where every operand and every result of a program lies, op by op.

In: what a derivation found (`derive.constraints` writes it). Out: plain data that a program
follows, so that no compiler is left a choice between collectives. A path is the shardings that a
tensor goes through; between neighbours of a path stands one step of the derivation.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain

from rooflight.algebra.notation import Axes, Tensor
from rooflight.algebra.shapes import ways
from rooflight.models.layout.rules import Layout, scheme_axes

Path = tuple[Tensor, ...]
Key = tuple[int | None, str]  # the block of an op, None outside the layers, and its name


@dataclass(frozen=True, slots=True)
class Constraint:
    """One matmul: the way of each operand to it, and of its result from it.

    The last sharding of an operand is the one it is multiplied in; the first of the result is what
    the local matmul leaves, sums pending; the last is where it stays.
    """

    op: str
    operands: tuple[Path, ...]
    result: Path

    @property
    def factors(self) -> tuple[Tensor, ...]:
        """The operands as they are multiplied."""
        return tuple(path[-1] for path in self.operands)

    def pending(self, index: int) -> Axes:
        """The axes over which the gradient of an operand is a pending sum.

        Every axis that splits the matmul and not the operand: dW = h * dy is summed over the
        tokens of one device only, so with tokens split over X it is dW{U_X}.
        """
        own = self.factors[index].sharded_over
        others = (*self.factors, self.result[0])
        every = dict.fromkeys(a for t in others for a in t.mesh_axes)
        return tuple(sorted(a for a in every if a not in own))


@dataclass(frozen=True, slots=True)
class Constraints:
    """A layout with the constraints of every matmul of a model.

    A scale or a bias meets an activation token by token: a matmul whose sum over tokens is only
    in its gradient. Its operands are the activation and the vector.
    """

    layout: Layout
    axes: Mapping[str, int]  # the mesh, outermost axis first
    ops: Mapping[Key, Constraint]
    vectors: Mapping[Key, Constraint] = field(
        default_factory=dict[Key, Constraint]
    )  # by name of the weight

    @property
    def context(self) -> int:
        """Devices that share the positions of a sequence, also where attention is computed."""
        axes = scheme_axes(self.layout).get("cp", ())
        return ways([a for a in axes if a in self.axes], self.axes)

    def once(self, weight: Tensor, block: int | None) -> Axes:
        """The axes over which a weight's gradient may pend until the end of a step.

        All of its matmuls leave the sum pending, and the weight itself is whole along them.
        """
        uses = [
            set(constraint.pending(i))
            for (where, _), constraint in chain(self.ops.items(), self.vectors.items())
            for i, tensor in enumerate(constraint.factors)
            if (tensor.name, tensor.dims) == (weight.name, weight.dims) and where == block
        ]
        own = set(self.layout.of_weight(weight).sharded_over)
        always = uses[0].intersection(*uses[1:]) if uses else set[str]()
        return tuple(sorted(always - own))

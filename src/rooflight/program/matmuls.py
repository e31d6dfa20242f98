"""`Scope`: the matmuls of one block, each as its constraint says and under its name in the graph.

In: the ops and weights of a block, and the constraints of a layout. Out: einsums whose operands and
results lie where the derivation put them, forward and backward: an operand is typed `reduced` over
the axes along which its gradient is a pending sum, so jax moves the gradient back the same way.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.typing import DTypeLike

from rooflight.algebra.notation import Axes, Contraction, Tensor
from rooflight.models.graph.ops import Op
from rooflight.models.layout.constraints import Constraint, Constraints, Path
from rooflight.models.spec import Norm
from rooflight.program.cpu.matmuls import few_rows, few_rows_can
from rooflight.program.model.layers import normalize
from rooflight.program.model.params import TensorSpec
from rooflight.program.shardings import spec_of
from rooflight.program.vectors import scaled, shifted

Arrays = TypeVar("Arrays")  # a tree of them
Moved = tuple[jax.Array, jax.Array]  # where it came from, which keeps its id taken, and where it is


@dataclass(frozen=True, slots=True)
class Scope:
    """One block while it is traced. What was moved once is not moved again."""

    constraints: Constraints
    block: int | None
    ops: Mapping[str, Op]
    specs: Mapping[str, TensorSpec]
    weights: Mapping[str, jax.Array]
    dtype: DTypeLike
    is_inference: bool = False  # no gradient is asked for
    moved: dict[tuple[int, str], Moved] = field(default_factory=dict[tuple[int, str], Moved])

    def constraint(self, name: str) -> Constraint:
        return self.constraints.ops[self.block, name]

    def matmul(self, name: str, x: jax.Array) -> jax.Array:
        """The contraction of the graph's op `name`, of an activation with its weight."""
        op, constraint = self.ops[name], self.constraint(name)
        names = iter(op.params)
        with jax.named_scope(name):
            factors = [
                self.weight(next(names), constraint, i)
                if t.name[0].isupper()
                else self.operand(x, constraint, i)
                for i, t in enumerate(op.contraction.operands)
            ]
            first, *rest = constraint.result
            y = self._contract(op.contraction, factors, first)
            for tensor in rest:
                y = jax.reshard(y, spec_of(tensor))
            for bias in names:
                y = shifted(y, self.beside(bias))
            return checkpoint_name(y, name)

    def _contract(
        self, contraction: Contraction, factors: list[jax.Array], result: Tensor
    ) -> jax.Array:
        if self.is_inference and len(factors) == 2 and few_rows_can(contraction, *factors):
            return jax.reshard(few_rows(contraction, *factors), spec_of(result))
        return jnp.einsum(subscripts(contraction), *factors, out_sharding=spec_of(result))

    def operand(self, x: jax.Array, constraint: Constraint, index: int) -> jax.Array:
        """An activation where the matmul takes it."""
        return self.along(x, constraint.operands[index], constraint.pending(index))

    def weight(self, name: str, constraint: Constraint, index: int) -> jax.Array:
        """A weight where the matmul takes it, in the dtype of the computation."""
        path = constraint.operands[index]
        once = self.constraints.once(path[-1], self.block)
        value = self.weights[name].astype(self.dtype)
        for tensor in path[:-1]:
            value = jax.reshard(value, spec_of(tensor, reduced=once))
        return jax.reshard(value, spec_of(path[-1], reduced=constraint.pending(index)))

    def along(self, x: jax.Array, path: Path, reduced: Axes = ()) -> jax.Array:
        """An activation taken along a path, one reshard a stop; only the last pends."""
        source = x
        for tensor, pending in [*((t, ()) for t in path[:-1]), (path[-1], reduced)]:
            key = (id(source), f"{tensor} {pending}")
            if key not in self.moved:
                self.moved[key] = source, jax.reshard(x, spec_of(tensor, reduced=pending))
            x = self.moved[key][1]
        return x

    def vector(self, name: str) -> jax.Array:
        """A scale, a bias or sinks where they meet an activation, their gradient left pending."""
        constraint = self.constraints.vectors[self.block, name]
        value = self.weights[name].astype(self.dtype)
        return jax.reshard(value, spec_of(constraint.factors[1], reduced=constraint.pending(1)))

    def beside(self, name: str) -> jax.Array:
        """The same with the dims of the activation, for `scaled` and `shifted`."""
        x, vector = self.constraints.vectors[self.block, name].factors
        missing = [i for i, d in enumerate(x.dims) if d not in vector.dims]
        return jnp.expand_dims(self.vector(name), missing)

    def norm(self, name: str, x: jax.Array, norm: Norm) -> jax.Array:
        """The graph's norm op `name`, with its scale and its bias."""
        op = self.ops[name]
        num_dims = 1 if not op.params else len(self.specs[op.params[0]].tensor.dims)
        with jax.named_scope(name):
            y = normalize(x, norm, num_dims=num_dims)
            for weight in op.params:
                vector = self.beside(weight).astype(jnp.float32)
                if weight.endswith("Bias"):
                    y = shifted(y, vector)
                else:
                    y = scaled(y, vector + 1 if norm.adds_one else vector)
            return checkpoint_name(self.apart(y.astype(x.dtype)), name)

    def apart(self, arrays: Arrays) -> Arrays:
        """Arrays as they are, and their gradients, written before anybody reads them.

        A matmul into which the work around it is fused, backward at each of its readers, takes
        up to twice its time; a pass over memory takes a fraction of it.
        """
        return arrays if self.is_inference else lax.optimization_barrier(arrays)


def subscripts(contraction: Contraction) -> str:
    """The contraction in the letters of einsum.

    >>> from rooflight.algebra.notation import parse_contraction
    >>> subscripts(parse_contraction("h[B,T,D] * W_q[D,K,G,H] -> q[B,T,K,G,H]"))
    'abc,cdef->abdef'
    """
    letters = {d: chr(ord("a") + i) for i, d in enumerate(contraction.dims)}
    terms = ["".join(letters[d] for d in t.dims) for t in contraction.operands]
    return f"{','.join(terms)}->{''.join(letters[d] for d in contraction.result.dims)}"

"""The constraints of a program: a derivation on a mesh, as data that `program` follows.

In: a graph, a layout, a mesh and the sizes of a batch. Out: `layout.constraints.Constraints`. The
lookup of tokens is derived as the matmul it is written as; arrays of queries by keys never leave
the kernel, so strategies that would move them are left out.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace

from rooflight.algebra.contract import Strategy
from rooflight.algebra.notation import Contraction, Tensor
from rooflight.algebra.shapes import ways
from rooflight.algebra.steps import Step
from rooflight.costs.choose import pick
from rooflight.dtypes import Dtype
from rooflight.hardware.mesh import Mesh
from rooflight.models.graph.ops import Graph, Op
from rooflight.models.layout.constraints import Constraint, Constraints, Key, Path
from rooflight.models.layout.rules import Layout, Rule
from rooflight.plan.training.derive.algorithm import pad_routed
from rooflight.plan.training.derive.derivation import (
    Derived,
    DerivedLayer,
    derive,
    known_strategies,
    token_axes,
)
from rooflight.plan.training.memory.remat import is_score


def constraints_of(
    graph: Graph, layout: Layout, *, mesh: Mesh, dims: Mapping[str, int], dtype: Dtype
) -> Constraints:
    """Derives every block, and the frame around them, under a layout on a mesh."""
    layout = without_lone_axes(layout, mesh)
    found = derivations_of(graph, layout, mesh=mesh, dims=dims, dtype=dtype)
    constraints = constrain({b: d.forward for b, d in found.items()}, layout, mesh=mesh, dims=dims)
    return replace(constraints, vectors=dict(vectors_of(graph, constraints)))


def vectors_of(graph: Graph, constraints: Constraints) -> Iterator[tuple[Key, Constraint]]:
    """Every scale, bias and sink with the activation it meets, split as that is."""
    tokens = constraints.layout.of_activation(Tensor("m", ("B", "T", "D"), ((), (), ())))
    tensors = {(p.block, p.name): p.tensor for p in graph.params}
    for op in graph.ops:
        constraint, result = constraints.ops.get((op.block, op.name)), op.contraction.result
        beside = (
            constraints.layout.of_activation(result)
            if constraint is None
            else constraint.result[-1]
        )
        factors = {t.name for t in op.contraction.operands if op.kind != "elementwise"}
        for name in op.params:
            if tensors[op.block, name].name not in factors:
                yield (op.block, name), _met(name, tensors[op.block, name], beside)
    for (block, name), tensor in tensors.items():
        if tensor.name == "Sinks":
            queries = constraints.ops[block, "attention.scores"].factors[0]
            yield (block, name), _met(name, tensor, queries)
        if tensor.name == "W_shared_gate":
            yield (block, name), _met(name, tensor, tokens)


def _met(name: str, vector: Tensor, beside: Tensor) -> Constraint:
    split = replace(vector, axes=tuple(beside.axes_of(d) for d in vector.dims))
    return Constraint(name, ((beside,), (split,)), (beside,))


def constrain(
    forward: Mapping[int | None, Sequence[Derived]],
    layout: Layout,
    *,
    mesh: Mesh,
    dims: Mapping[str, int],
) -> Constraints:
    """The constraints of steps that were derived: those of each block, and of the frame (None)."""
    sizes = _padded(layout, mesh, dims)
    ops: dict[Key, Constraint] = {}
    for block, lines in forward.items():
        for name in dict.fromkeys(line.op.name for line in lines):
            ops[block, name] = _constraint(
                name, [x for x in lines if x.op.name == name], sizes, mesh
            )
    return Constraints(layout, dict(mesh.axes), ops)


def derivations_of(
    graph: Graph, layout: Layout, *, mesh: Mesh, dims: Mapping[str, int], dtype: Dtype
) -> dict[int | None, DerivedLayer]:
    """What constraints are read off: the steps of each block, and of embedding and head (None)."""
    blocks = dict.fromkeys(op.block for op in graph.ops)
    of_block = {block: [op for op in graph.ops if op.block == block] for block in blocks}
    return {
        block: derive_ops(graph, ops, layout, mesh=mesh, dims=dims, dtype=dtype)
        for block, ops in of_block.items()
    }


def derive_ops(
    graph: Graph,
    ops: Iterable[Op],
    layout: Layout,
    *,
    mesh: Mesh,
    dims: Mapping[str, int],
    dtype: Dtype,
) -> DerivedLayer:
    """The steps of some ops as the program does them."""
    layout = without_lone_axes(layout, mesh)
    sizes = _padded(layout, mesh, dims)

    def choose(contraction: Contraction) -> Strategy:
        found = tuple(s for s in known_strategies(contraction) if not _moves_scores(s))
        return pick(found, dims=sizes, mesh=mesh, dtype=dtype).strategy

    return derive(graph, [as_matmul(op) for op in ops], layout, choose)


def _padded(layout: Layout, mesh: Mesh, dims: Mapping[str, int]) -> dict[str, int]:
    return pad_routed(dims, ways(token_axes(layout), mesh.axes))


def without_lone_axes(layout: Layout, mesh: Mesh) -> Layout:
    """The layout as it works: an axis of one device splits nothing."""
    return _without(layout, {a for a, size in mesh.axes.items() if size == 1})


def _without(layout: Layout, axes: Set[str]) -> Layout:
    def rule(axes_of: Rule) -> Rule:
        return {d: tuple(a for a in held if a not in axes) for d, held in axes_of.items()}

    return replace(
        layout,
        weight=rule(layout.weight),
        stream=rule(layout.stream),
        inner=rule(layout.inner),
        scores=rule(layout.scores),
        stages=tuple(a for a in layout.stages if a not in axes),
    )


def _moves_scores(strategy: Strategy) -> bool:
    return any(is_score(step.output) for step in strategy.steps if step.op != "einsum")


def as_matmul(op: Op) -> Op:
    """The lookup of tokens as the matmul it is written as."""
    return replace(op, kind="matmul") if op.kind == "lookup" else op


def _constraint(
    name: str, lines: Iterable[Derived], sizes: Mapping[str, int], mesh: Mesh
) -> Constraint:
    steps = [line.step for line in lines]
    matmul = next((s for s in steps if s.op == "einsum"), None)
    if matmul is None:  # routed tokens on their way back
        path = (steps[0].inputs[0], *(s.output for s in steps))
        return Constraint(name, (_even(path, sizes, mesh),), (path[-1],))
    before, after = steps[: steps.index(matmul)], steps[steps.index(matmul) + 1 :]
    operands = tuple(_even(_way_to(t, before), sizes, mesh) for t in matmul.inputs)
    result = (matmul.output, *(s.output for s in after))
    return Constraint(name, operands, _even(result, sizes, mesh))


def _way_to(tensor: Tensor, steps: Sequence[Step]) -> Path:
    """The shardings an operand goes through; one that was made before has no steps here."""
    path: list[Tensor] = [tensor]
    for step in reversed(steps):
        if step.output == path[0]:
            path.insert(0, step.inputs[0])
    return tuple(path)


def _even(path: Path, sizes: Mapping[str, int], mesh: Mesh) -> Path:
    """Leaves out stops on the way at which a dim would not split evenly."""
    between = (t for t in path[1:-1] if _is_even(t, sizes, mesh))
    return path if len(path) < 3 else (path[0], *between, path[-1])


def _is_even(tensor: Tensor, sizes: Mapping[str, int], mesh: Mesh) -> bool:
    pairs = zip(tensor.dims, tensor.axes, strict=True)
    return all(sizes[d] % ways(axes, mesh.axes) == 0 for d, axes in pairs)

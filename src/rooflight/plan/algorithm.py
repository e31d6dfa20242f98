"""The forward and backward algorithm of a layer under a layout, step by step, in the notation.

In: the ops of a graph, a `Layout`, a mesh and sizes. Out: an `Algorithm`: lines, each a derived
step, each collective marked by what waits for it. Nothing here knows any parallelism: every line
comes from `algebra` and `costs.pick`.

What waits for a collective (the book's chapter 5 marks the same):

    critical   the next activation, or the gradient that flows back
    ahead      only the product it feeds; its input is a weight, there long before
    async      only a weight's gradient, which nobody needs before the optimizer
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Literal

from rooflight.algebra import (
    Contraction,
    Step,
    Strategy,
    Tensor,
    backward,
    device_bytes,
    gradient_of,
    reshard,
    strategies,
    ways,
)
from rooflight.costs import StepPrice, contraction_time, pick, price_step
from rooflight.dtypes import Dtype
from rooflight.graph.layout import Layout
from rooflight.graph.ops import HAS_FLOPS, Graph, Op
from rooflight.specs.mesh import Mesh

Waits = Literal["critical", "ahead", "async", ""]


@dataclass(frozen=True, slots=True)
class Line:
    """One step, the op it belongs to, its time, and what waits for it (collectives only)."""

    op: str
    price: StepPrice
    waits: Waits
    kept: bool = False  # the forward pass has made this already; a program may keep it
    visible: float = 1.0  # the part of the query-key pairs that an attention kernel computes

    @property
    def step(self) -> Step:
        return self.price.step


@dataclass(frozen=True, slots=True)
class Algorithm:
    """A layer forward and backward."""

    layout: Layout
    forward: tuple[Line, ...]
    backward: tuple[Line, ...]


@lru_cache(maxsize=8192)
def _strategies(contraction: Contraction) -> tuple[Strategy, ...]:
    """Derived once for a pattern of shardings, whatever the sizes: a search asks many times."""
    return strategies(contraction)


@dataclass(frozen=True, slots=True)
class _Setting:
    """What the whole derivation shares."""

    weights: frozenset[str]
    layout: Layout
    mesh: Mesh
    dims: Mapping[str, int]
    dtype: Dtype

    def best_steps(self, op: Op, contraction: Contraction) -> list[StepPrice]:
        found = _strategies(contraction)
        best = pick(found, dims=self.dims, mesh=self.mesh, dtype=self.dtype)
        return [_as_kernel(p, op, self) if p.op and op.mask else p for p in best.steps]

    def path(self, source: Tensor, target: Tensor) -> list[StepPrice]:
        steps = reshard(source, target, self.mesh.axes)
        return [price_step(s, self.dims, self.mesh, self.dtype) for s in steps]


@dataclass(frozen=True, slots=True)
class _Done:
    """An op of the forward pass as it was done: a contraction, or tokens that changed places."""

    op: Op
    contraction: Contraction | None = None
    moved: tuple[Tensor, Tensor] | None = None


@dataclass(slots=True)
class _Pass:
    """One direction on its way: its lines, and every tensor made so far."""

    lines: list[Line] = field(default_factory=list[Line])
    made: set[Tensor] = field(default_factory=set[Tensor])

    def add(self, op: Op, prices: Sequence[StepPrice], setting: _Setting) -> None:
        """Appends steps, leaving out those that lead to a tensor that is there already."""
        skipped = _already_made([p.step for p in prices], self.made)
        for price in prices:
            if price.step not in skipped:
                self.made.add(price.step.output)
                waits = _waits(price.step, setting)
                visible = _visible(op, setting.dims) if price.op else 1.0
                self.lines.append(Line(op.name, price, waits, visible=visible))


def derive_algorithm(
    graph: Graph,
    ops: Iterable[Op],
    layout: Layout,
    *,
    mesh: Mesh,
    dims: Mapping[str, int],
    dtype: Dtype,
) -> Algorithm:
    """Derives the steps of `ops`, in order, and of their gradients, in reverse.

    Matrix products and the exchange of routed tokens only: elementwise ops are local in every
    layout. Norms over a split D need a sum of one number a token, which is not listed. The tokens
    of an expert are padded to a multiple of the ways that tokens are split.
    """
    weights = frozenset(p.tensor.name for p in graph.params)
    tokens = (*layout.stream.get("B", ()), *layout.stream.get("T", ()))
    padded = pad_routed(dims, ways(tokens, mesh.axes))
    setting = _Setting(weights, layout, mesh, padded, dtype)
    forward = _Pass()
    placed: dict[str, Tensor] = {}
    products = [op for op in ops if op.kind in HAS_FLOPS or op.kind == "route"]
    done = [d for op in products if (d := _forward(op, setting, forward, placed))]
    back = _Pass()
    _backward(done, setting, back, forward.made)
    return Algorithm(layout, tuple(forward.lines), tuple(_marked(back.lines, setting)))


def pad_routed(dims: Mapping[str, int], multiple: int) -> dict[str, int]:
    """Rounds the tokens an expert receives (dims C, C2...) up to a multiple.

    >>> pad_routed({"B": 3, "C": 2458}, 16)
    {'B': 3, 'C': 2464}
    """
    return {
        d: -(-n // multiple) * multiple if d.rstrip("0123456789") == "C" else n
        for d, n in dims.items()
    }


def _forward(op: Op, setting: _Setting, run: _Pass, placed: dict[str, Tensor]) -> _Done | None:
    """Derives one op with its operands where earlier ops left them."""
    result = setting.layout.of_activation(op.contraction.result)
    if op.kind == "route":
        return _route(op, result, setting, run, placed)
    operands = tuple(_operand(t, setting, placed) for t in op.contraction.operands)
    contraction = Contraction(operands, result)
    run.add(op, setting.best_steps(op, contraction), setting)
    placed[result.name] = result
    return _Done(op, contraction)


def _route(
    op: Op, result: Tensor, setting: _Setting, run: _Pass, placed: dict[str, Tensor]
) -> _Done | None:
    """Routing reorders rows where they are; what experts computed must come back for it."""
    if "C" in result.dims:
        placed[result.name] = _where_routed(result, setting.layout)
        return None
    computed = next(t for t in op.contraction.operands if "C" in t.dims and "D" in t.dims)
    source = _operand(computed, setting, placed)
    target = _where_routed(source, setting.layout)
    run.add(op, setting.path(source, target), setting)
    placed[result.name] = result
    return _Done(op, moved=(source, target))


def _visible(op: Op, dims: Mapping[str, int]) -> float:
    """The part of all query-key pairs that a causal mask and a window let through."""
    if op.mask is None:
        return 1.0
    queries, keys = dims["T"], dims["S"]
    return op.mask.pairs(queries, keys, causal=True) / (queries * keys)


def _as_kernel(price: StepPrice, op: Op, setting: _Setting) -> StepPrice:
    """An attention kernel skips masked pairs and never writes the scores to memory."""
    step, chip, axes = price.step, setting.mesh.slice.chip, setting.mesh.axes
    stored = [t for t in (*step.inputs, step.output) if not {"T", "S"} <= set(t.dims)]
    moved = sum(device_bytes(t, setting.dims, axes, setting.dtype) for t in stored)
    flops = price.flops * _visible(op, setting.dims)
    compute = chip.matmul_dtype(setting.dtype.name)
    kernel = contraction_time(chip, flops=flops, bytes_moved=moved, compute=compute)
    return replace(price, nbytes=moved, flops=flops, op=kernel)


def _where_routed(tensor: Tensor, layout: Layout) -> Tensor:
    """C takes the axes of B and T, and E none: tokens are routed where they are."""
    tokens = (*layout.stream.get("B", ()), *layout.stream.get("T", ()))
    return replace(tensor, axes=tuple(tokens if d == "C" else () for d in tensor.dims))


def _operand(tensor: Tensor, setting: _Setting, placed: Mapping[str, Tensor]) -> Tensor:
    """A weight in its own sharding, an activation where the op before left it."""
    if tensor.name in setting.weights:
        return setting.layout.of_weight(tensor)
    before = placed.get(tensor.name)
    written = tuple("T" if d == "S" else d for d in tensor.dims)  # keys are written as queries are
    if before is None or before.dims != written:
        return setting.layout.of_activation(tensor)
    return replace(tensor, axes=before.axes)


def _already_made(steps: list[Step], made: set[Tensor]) -> set[Step]:
    """The steps of each operand up to the last one whose output is there already."""
    skipped: set[Step] = set()
    chain: list[Step] = []
    for step in steps:
        if step.op == "einsum":
            break
        if chain and step.inputs[0] != chain[-1].output:
            chain = []
        chain.append(step)
        if step.output in made:
            skipped |= set(chain)
    return skipped


def _waits(step: Step, setting: _Setting) -> Waits:
    if not step.is_collective:
        return ""
    name = step.output.name
    if name in setting.weights:
        return "ahead"
    return "async" if name[1:] in setting.weights and name[0] == "d" else "critical"


def _backward(done: list[_Done], setting: _Setting, run: _Pass, forward: set[Tensor]) -> None:
    """Gradients in reverse, those of weights first; a tensor used often is summed, then moved."""
    uses = Counter(_use(t) for d in done if d.contraction for t in d.contraction.operands)
    waiting: dict[_Use, list[list[StepPrice]]] = {}
    for item in reversed(done):
        if item.moved:
            source, target = (gradient_of(t) for t in item.moved)
            run.add(item.op, setting.path(target, source), setting)
            continue
        assert item.contraction
        for operand, gradient in _gradients(item.contraction, setting):
            steps = setting.best_steps(item.op, gradient)
            at = next(i for i, p in enumerate(steps) if p.op) + 1
            run.add(item.op, steps[:at], setting)
            rest = waiting.setdefault(_use(operand), [])
            rest.append(steps[at:])
            if len(rest) == uses[_use(operand)]:
                for move in _merged(rest):
                    run.add(item.op, move, setting)
    run.lines = [_kept(line, setting, forward) for line in run.lines]


_Use = tuple[str, tuple[str, ...]]


def _use(tensor: Tensor) -> _Use:
    """Routed and shared experts have tensors of one name with different dims."""
    return tensor.name, tensor.dims


def _gradients(contraction: Contraction, setting: _Setting) -> list[tuple[Tensor, Contraction]]:
    """Each operand with the contraction of its gradient, weights first, as the book does."""
    pairs = list(zip(contraction.operands, backward(contraction), strict=True))
    return sorted(pairs, key=lambda pair: pair[0].name not in setting.weights)


def _merged(moves: list[list[StepPrice]]) -> list[list[StepPrice]]:
    """Terms that lie alike are added where they are, and the sum is moved once."""
    distinct: dict[tuple[Step, ...], list[StepPrice]] = {}
    for move in moves:
        distinct.setdefault(tuple(p.step for p in move), move)
    return list(distinct.values())


def _kept(line: Line, setting: _Setting, forward: set[Tensor]) -> Line:
    """Gathered activations may be kept from the forward pass; gathered weights are not."""
    step = line.step
    again = step.is_collective and step.output in forward
    return replace(line, kept=True) if again and step.output.name not in setting.weights else line


def _marked(lines: list[Line], setting: _Setting) -> list[Line]:
    """A collective that only a weight's gradient uses keeps nobody waiting."""
    flows: dict[Tensor, set[bool]] = {}
    for line in lines:
        if line.step.op == "einsum":
            for tensor in line.step.inputs:
                users = flows.setdefault(tensor, set())
                users.add(line.step.output.name[1:] not in setting.weights)
    return [
        replace(line, waits="async")
        if line.waits == "critical" and flows.get(line.step.output) == {False}
        else line
        for line in lines
    ]

"""The forward and backward steps of a layer under a layout, in the notation, without times.

In: the ops of a graph, a `Layout`, and who chooses between strategies. Out: a `DerivedLayer`: steps
in order, each collective marked by what waits for it. Nothing here knows any parallelism or any
size: every step comes from `algebra`, so a derivation belongs to a template of axes and can be
priced on every mesh that has them.

What waits for a collective (the book's chapter 5 marks the same):

    critical   the next activation, or the gradient that flows back
    ahead      only the matmul it feeds; its input is a weight, there long before
    async      only a weight's gradient, which nobody needs before the optimizer
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Literal

from rooflight.algebra.autodiff import backward, gradient_of
from rooflight.algebra.contract import Strategy, strategies
from rooflight.algebra.notation import Axes, Contraction, Tensor
from rooflight.algebra.reshard import reshard
from rooflight.algebra.steps import Step
from rooflight.models.graph.ops import HAS_FLOPS, Graph, Op
from rooflight.models.layout.rules import Layout, scheme_axes

Waits = Literal["critical", "ahead", "async", ""]
Slot = Literal["F", "B", "W"]  # forward, input gradient, weight gradient
Choose = Callable[[Contraction], Strategy]
_RING = ("attention.scores", "attention.rope_scores", "attention.mix")


@dataclass(frozen=True, slots=True)
class Derived:
    """One step, the op it belongs to, what waits for it (collectives only), and its slot."""

    op: Op
    step: Step
    waits: Waits
    slot: Slot = "F"
    saved: bool = False  # the forward pass has made this already; a program may keep it
    once: bool = False  # a sum over microbatches may wait for the last of them
    hops: bool = False  # block by block from neighbour to neighbour, beside the op's own matmul


@dataclass(frozen=True, slots=True, eq=False)
class DerivedLayer:
    """A layer forward and backward; `derived_layers` makes each once, so one is only itself."""

    forward: tuple[Derived, ...]
    backward: tuple[Derived, ...]

    @property
    def spent(self) -> tuple[Derived, ...]:
        """The steps that take time: slices are free, and what the forward pass made is saved."""
        steps = (*self.forward, *self.backward)
        return tuple(d for d in steps if d.step.op != "slice" and not d.saved)


@lru_cache(maxsize=8192)
def known_strategies(contraction: Contraction) -> tuple[Strategy, ...]:
    """Derived once for a template of shardings, whatever the sizes: a search asks many times."""
    return strategies(contraction)


Split = tuple[str, Axes]  # a dim and the axes that split it


@dataclass(frozen=True, slots=True)
class KnownStrategy:
    """A strategy, and what does not depend on sizes: what must divide, and its reroutes."""

    strategy: Strategy
    splits: frozenset[Split]  # of every block on the way
    reroutes: int


@lru_cache(maxsize=8192)
def known_options(contraction: Contraction) -> tuple[KnownStrategy, ...]:
    """`known_strategies` with what a choice between them asks first."""
    return tuple(
        KnownStrategy(
            s, splits_of(t for step in s.steps for t in (*step.inputs, step.output)), s.reroutes
        )
        for s in known_strategies(contraction)
    )


def splits_of(tensors: Iterable[Tensor]) -> frozenset[Split]:
    """Every dim that some axes split."""
    return frozenset(
        (d, axes) for t in tensors for d, axes in zip(t.dims, t.axes, strict=True) if axes
    )


@dataclass(frozen=True, slots=True)
class _Setting:
    """What the whole derivation shares."""

    weights: frozenset[str]
    layout: Layout
    choose: Choose


@dataclass(frozen=True, slots=True)
class _ForwardOp:
    """An op of the forward pass as it was done: a contraction, or tokens that changed places."""

    op: Op
    contraction: Contraction | None = None
    moved: tuple[Tensor, Tensor] | None = None


@dataclass(slots=True)
class _Pass:
    """One direction on its way: its steps, and every tensor made so far."""

    setting: _Setting
    is_backward: bool = False
    lines: list[Derived] = field(default_factory=list[Derived])
    made: set[Tensor] = field(default_factory=set[Tensor])

    def add(self, op: Op, steps: Sequence[Step]) -> None:
        """Appends steps, leaving out those that lead to a tensor that is there already."""
        skipped = _already_made(steps, self.made)
        for step in steps:
            if step not in skipped:
                self.made.add(step.output)
                waits = _waits(step, self.setting.weights)
                self.lines.append(Derived(op, step, waits, "B" if self.is_backward else "F"))


def derive(graph: Graph, ops: Iterable[Op], layout: Layout, choose: Choose) -> DerivedLayer:
    """Derives the steps of `ops`, in order, and of their gradients, in reverse.

    Matrix matmuls and the exchange of routed tokens only: elementwise ops are local in every
    layout. Norms over a split D need a sum of one number per token, which is not listed.
    """
    forward, done = _run_forward(graph, ops, layout, choose)
    setting = forward.setting
    back = _Pass(setting, is_backward=True)
    _backward(done, back)
    lines = [_saved(line, setting, forward.made) for line in back.lines]
    both = forward.lines, _marked(lines, setting)
    return DerivedLayer(*(tuple(_in_hops(x, layout) for x in side) for side in both))


def _in_hops(line: Derived, layout: Layout) -> Derived:
    """Marks what a mode of the layout moves hop by hop; a ring keeps nothing that came by."""
    ring = scheme_axes(layout)["cp"] if "cp" in layout.modes else ()
    step = line.step
    travels = step.op in ("all_gather", "reduce_scatter") and set(step.axes) <= set(ring)
    if line.op.name not in _RING or not travels:
        return line
    return replace(line, hops=True, saved=False)


def derive_forward(
    graph: Graph, ops: Iterable[Op], layout: Layout, choose: Choose
) -> tuple[Derived, ...]:
    """The forward steps alone, as serving takes them."""
    return tuple(_run_forward(graph, ops, layout, choose)[0].lines)


def _run_forward(
    graph: Graph, ops: Iterable[Op], layout: Layout, choose: Choose
) -> tuple[_Pass, list[_ForwardOp]]:
    forward = _Pass(_Setting(frozenset(p.tensor.name for p in graph.params), layout, choose))
    placed: dict[str, Tensor] = {}
    matmuls = [op for op in ops if op.kind in HAS_FLOPS or op.kind == "route"]
    return forward, [d for op in matmuls if (d := _forward(op, forward, placed))]


def _forward(op: Op, run: _Pass, placed: dict[str, Tensor]) -> _ForwardOp | None:
    """Derives one op with its operands where earlier ops left them."""
    setting = run.setting
    result = setting.layout.of_activation(op.contraction.result)
    if op.kind == "route":
        route = _route_sums if setting.layout.combines else _route
        return route(op, result, run, placed)
    if setting.layout.combines and {"C", "D"} <= set(result.dims):
        result = result.with_unreduced(setting.layout.inner.get("Fe", ()))
    operands = tuple(_operand(t, setting, placed) for t in op.contraction.operands)
    contraction = Contraction(operands, result)
    run.add(op, setting.choose(contraction).steps)
    placed[result.name] = result
    return _ForwardOp(op, contraction)


def _route(op: Op, result: Tensor, run: _Pass, placed: dict[str, Tensor]) -> _ForwardOp | None:
    """Routing reorders rows where they are; what experts computed must come back for it."""
    layout = run.setting.layout
    if "C" in result.dims:
        placed[result.name] = _where_routed(result, layout)
        return None
    computed = next(t for t in op.contraction.operands if "C" in t.dims and "D" in t.dims)
    source = _operand(computed, run.setting, placed)
    target = _where_routed(source, layout)
    run.add(op, reshard(source, target))
    placed[result.name] = result
    return _ForwardOp(op, moved=(source, target))


def _route_sums(op: Op, result: Tensor, run: _Pass, placed: dict[str, Tensor]) -> None:
    """Routing where a chip adds up, for each token, what its own experts gave.

    Tokens are gathered over the axes that split an expert's width, so every such chip routes
    them. Of the axes of E, those that split tokens exchange them; over the others all chips have
    the same tokens, and what is left is a sum over those chips of one vector per token.
    """
    layout = run.setting.layout
    width = layout.inner.get("Fe", ())
    tokens = tuple(a for a in token_axes(layout) if a not in width)
    if "C" in result.dims:
        stream = _operand(op.contraction.operands[1], run.setting, placed)
        saved = tuple(tuple(a for a in axes if a not in width) for axes in stream.axes)
        run.add(op, reshard(stream, replace(stream, axes=saved)))
        where = {"C": tokens, "D": result.axes_of("D")}
        placed[result.name] = replace(result, axes=tuple(where.get(d, ()) for d in result.dims))
        return
    computed = next(t for t in op.contraction.operands if "C" in t.dims and "D" in t.dims)
    source = placed[computed.name]
    rest = tuple(a for a in source.axes_of("E") if a not in tokens)
    run.add(op, reshard(source, source.with_axes("E", rest).with_axes("C", tokens)))
    saved = tuple(tuple(a for a in axes if a not in width) for axes in result.axes)
    summed = replace(result, axes=saved).with_unreduced((*source.unreduced, *rest))
    run.add(op, reshard(summed, result))
    placed[result.name] = result


def token_axes(layout: Layout) -> tuple[str, ...]:
    """The axes that split tokens where they are routed."""
    return (*layout.stream.get("B", ()), *layout.stream.get("T", ()))


def _where_routed(tensor: Tensor, layout: Layout) -> Tensor:
    """C takes the axes of B and T, and E none: tokens are routed where they are."""
    tokens = token_axes(layout)
    return replace(tensor, axes=tuple(tokens if d == "C" else () for d in tensor.dims))


def _operand(tensor: Tensor, setting: _Setting, placed: Mapping[str, Tensor]) -> Tensor:
    """A weight in its own sharding, an activation where the op before left it."""
    if tensor.name in setting.weights:
        return setting.layout.of_weight(tensor)
    cached = setting.layout.of_cache(tensor)
    if cached is not None:
        return cached
    before = placed.get(tensor.name)
    written = tuple("T" if d == "S" else d for d in tensor.dims)  # keys are written as queries are
    if before is None or before.dims != written:
        return setting.layout.of_activation(tensor)
    return replace(tensor, axes=before.axes)


def _already_made(steps: Sequence[Step], made: set[Tensor]) -> set[Step]:
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


def _waits(step: Step, weights: frozenset[str]) -> Waits:
    if not step.is_collective:
        return ""
    if step.output.name in weights:
        return "ahead"
    return "async" if _is_weight_gradient(step.output, weights) else "critical"


def _is_weight_gradient(tensor: Tensor, weights: frozenset[str]) -> bool:
    return tensor.name[0] == "d" and tensor.name[1:] in weights


def _backward(done: list[_ForwardOp], run: _Pass) -> None:
    """Gradients in reverse, those of weights first; a tensor used often is summed, then moved."""
    uses = Counter(_use(t) for d in done if d.contraction for t in d.contraction.operands)
    waiting: dict[_Use, list[tuple[Step, ...]]] = {}
    for item in reversed(done):
        if item.moved:
            source, target = (gradient_of(t) for t in item.moved)
            run.add(item.op, reshard(target, source))
            continue
        assert item.contraction
        for operand, gradient in _gradients(item.contraction, run.setting.weights):
            steps = run.setting.choose(gradient).steps
            at = next(i for i, s in enumerate(steps) if s.op == "einsum") + 1
            run.add(item.op, steps[:at])
            rest = waiting.setdefault(_use(operand), [])
            rest.append(steps[at:])
            if len(rest) == uses[_use(operand)]:
                for move in dict.fromkeys(rest):  # terms that lie alike are added, then moved once
                    run.add(item.op, move)


_Use = tuple[str, tuple[str, ...]]


def _use(tensor: Tensor) -> _Use:
    """Routed and shared experts have tensors of one name with different dims."""
    return tensor.name, tensor.dims


def _gradients(
    contraction: Contraction, weights: frozenset[str]
) -> list[tuple[Tensor, Contraction]]:
    """Each operand with the contraction of its gradient, weights first, as the book does."""
    pairs = list(zip(contraction.operands, backward(contraction), strict=True))
    return sorted(pairs, key=lambda pair: pair[0].name not in weights)


def _saved(line: Derived, setting: _Setting, forward: set[Tensor]) -> Derived:
    """Gathered activations may be saved from the forward pass; gathered weights are not."""
    step = line.step
    again = step.is_collective and step.output in forward
    return replace(line, saved=True) if again and step.output.name not in setting.weights else line


def _marked(lines: list[Derived], setting: _Setting) -> list[Derived]:
    """Who waits, and which slot a step belongs to, once all steps are known.

    A collective that only a weight's gradient uses keeps nobody waiting. A sum over microbatches
    is taken once where it may pend at no cost: an all-reduce leaves a gradient as large as it
    was, so each chip adds up its own part first; a reduce-scatter would have to keep the whole.
    """
    flows: dict[Tensor, set[bool]] = {}
    for line in lines:
        if line.step.op == "einsum":
            for tensor in line.step.inputs:
                users = flows.setdefault(tensor, set())
                users.add(not _is_weight_gradient(line.step.output, setting.weights))
    moved_on = {line.step.inputs[0] for line in lines if line.step.is_collective}
    return [_mark(line, setting.weights, flows, moved_on) for line in lines]


def _mark(
    line: Derived, weights: frozenset[str], flows: Mapping[Tensor, set[bool]], moved_on: set[Tensor]
) -> Derived:
    step = line.step
    if _is_weight_gradient(step.output, weights):
        once = step.op == "all_reduce" and step.output not in moved_on
        return replace(line, slot="W", once=once)
    if line.waits == "critical" and flows.get(step.output) == {False}:
        return replace(line, slot="W", waits="async")
    return line

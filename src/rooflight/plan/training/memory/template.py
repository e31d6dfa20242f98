"""`Template`: every tensor of a step where a layout puts it, before any size is known.

In: a graph, a layout, a remat policy and a framework. Out: placed tensors, by block. A template
serves every mesh and batch, so it is made once and cached; `memory` only multiplies sizes.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from rooflight.algebra.notation import Axes, Tensor
from rooflight.dtypes import Dtype
from rooflight.models.graph.ops import Graph, Op, Param
from rooflight.models.layout.rules import Layout
from rooflight.plan.training.memory.framework import Framework
from rooflight.plan.training.memory.job import Job
from rooflight.plan.training.memory.remat import REMATS, Remat, activations, is_score, keep

_BESIDE = {"weights": "scores", "attended": "dropout masks", "fed": "dropout masks"}


@dataclass(frozen=True, slots=True)
class Stored:
    """A weight at its home."""

    param: Param
    placed: Tensor


@dataclass(frozen=True, slots=True)
class WeightDot:
    """A weight matmul as one chip does it, its operands brought together."""

    name: str
    weight: Tensor
    activations: tuple[Tensor, ...]
    gathered_over: Axes  # axes that the weight loses for the matmul


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer of a kind: what it keeps, what it recomputes, and what each op brings together."""

    saved: tuple[Tensor, ...]
    names: tuple[str, ...]  # of what is saved
    beside: tuple[tuple[Tensor, Dtype], ...]  # masks of dropout and scores, where they are saved
    recomputed: tuple[Tensor, ...]
    matmuls: tuple[WeightDot, ...]
    moments: tuple[tuple[Tensor, ...], ...]  # operands and result of each op, in memory together
    weights: tuple[Stored, ...]


@dataclass(frozen=True, slots=True)
class Template:
    """The layers by block, and what is around them."""

    layers: Mapping[int, Layer]
    embedding: tuple[Stored, ...]
    head: tuple[Stored, ...]
    tied: tuple[Stored, ...]  # of the embedding, read by the head again
    head_saved: tuple[Tensor, ...]
    head_matmuls: tuple[WeightDot, ...]
    logits: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Same:
    """A graph as a key: graphs are made once a model, so the same one is the same."""

    graph: Graph

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.graph is other.graph

    def __hash__(self) -> int:
        return id(self.graph)


def template_of(job: Job) -> Template:
    """The template of a job, from the cache where another job had the same."""
    layout = job.layout
    rules = (layout.weight, layout.stream, layout.inner, layout.scores)
    key = (layout.text, *(tuple(rule.items()) for rule in rules))
    return _cached(Same(job.graph), _LayoutKey(layout, key), job.remat, job.framework)


@dataclass(frozen=True, slots=True)
class _LayoutKey:
    layout: Layout = field(compare=False)
    key: tuple[object, ...]


@lru_cache(maxsize=1024)
def _cached(same: Same, held: _LayoutKey, remat: Remat, framework: Framework) -> Template:
    graph, layout = same.graph, held.layout
    stored = [Stored(p, layout.of_weight(p.tensor)) for p in graph.params]
    frame = [op for op in graph.ops if op.block is None]
    head = next(op for op in frame if "V" in op.contraction.result.dims)
    ends = [t for t in keep(frame, REMATS["none"]).tensors if "V" not in t.dims]
    outer = [s for s in stored if s.param.block is None]
    return Template(
        layers={b: _layer(graph, b, layout, remat, framework) for b in dict.fromkeys(graph.order)},
        embedding=tuple(s for s in outer if s.param.part == "embedding"),
        head=tuple(s for s in outer if s.param.part != "embedding"),
        tied=tuple(s for s in outer if s.param.part == "embedding" and s.param.name in head.params),
        head_saved=tuple(map(layout.of_activation, ends)),
        head_matmuls=tuple(_matmul(op, layout) for op in frame if op.kind == "matmul"),
        logits=layout.of_activation(head.contraction.result),
    )


def _layer(graph: Graph, block: int, layout: Layout, remat: Remat, framework: Framework) -> Layer:
    ops = [op for op in graph.ops if op.block == block]
    saved = keep(ops, remat)
    matmuls = {op.name: _matmul(op, layout) for op in ops if op.kind == "matmul"}
    whole = _whole(ops, matmuls) if framework.keeps_gathered else {}
    tensors = [*filter(framework.keeps, saved.tensors), *_copies(ops, saved.tensors, framework)]
    results = dict.fromkeys(op.contraction.result for op in ops if remat.saves(op))
    copies = [(t, d) for t in results for d in framework.beside(t.name)]
    stays = _inputs_of_matmuls(ops, tensors) if framework.inputs else {}
    copies += [(t, framework.inputs) for t in stays if framework.inputs]
    names = [*(t.name for t in tensors), *(_BESIDE.get(t.name, t.name) for t, _ in copies)]
    return Layer(
        saved=tuple(
            whole.get(t.name) or layout.of_activation(t) for t in tensors if stays.get(t, True)
        ),
        names=tuple(dict.fromkeys(names)),
        beside=tuple((layout.of_activation(t), dtype) for t, dtype in copies),
        recomputed=tuple(map(layout.of_activation, saved.recomputed)),
        matmuls=tuple(matmuls.values()),
        moments=tuple(_moment(op, layout, matmuls) for op in ops if op.kind != "elementwise"),
        weights=tuple(
            Stored(p, layout.of_weight(p.tensor)) for p in graph.params if p.block == block
        ),
    )


def _inputs_of_matmuls(ops: Sequence[Op], saved: Iterable[Tensor]) -> dict[Tensor, bool]:
    """Saved inputs of weight matmuls, and whether another op needs them as they are too.

    The router's matmul is not quantized, and attention reads its own result again.
    """
    matmuls = [op for op in ops if op.kind == "matmul" and op.name != "router.scores"]
    read = {t.name for op in matmuls for t in activations(op)}
    others = [op for op in ops if op not in matmuls]
    as_is = {t.name for op in others for t in activations(op)}
    as_is |= {op.contraction.result.name for op in others if op.kind == "attention"}
    return {t: t.name in as_is for t in saved if t.name in read}


def _whole(ops: Iterable[Op], matmuls: Mapping[str, WeightDot]) -> dict[str, Tensor]:
    """Inputs of matmuls as gathered for them; the stream itself is an input of no product."""
    found: dict[str, Tensor] = {}
    for op in ops:
        if op.kind == "matmul":
            inputs = zip(activations(op), matmuls[op.name].activations, strict=False)
            found |= {t.name: placed for t, placed in inputs if "D" in t.dims}
    return found


def _copies(ops: Iterable[Op], saved: Iterable[Tensor], framework: Framework) -> list[Tensor]:
    """The activated gate of a matmul; what experts without a gate hold before it is weighed."""
    names = {t.name for t in saved}
    found: list[Tensor] = []
    for op in ops:
        if not op.name.endswith(".act") or op.contraction.result.name not in names:
            continue
        is_gated = len(op.contraction.operands) > 1
        if is_gated and framework.keeps_activation:
            found.append(replace(op.contraction.operands[0], name="activated"))
        if not is_gated and framework.weighs_hidden and op.name.startswith("experts."):
            found.append(replace(op.contraction.result, name="weighed"))
    return found


def _moment(op: Op, layout: Layout, matmuls: Mapping[str, WeightDot]) -> tuple[Tensor, ...]:
    """Gradients of the result and of the activations of one op are in memory together."""
    if op.kind == "matmul":
        return matmuls[op.name].activations
    ends = [*activations(op), op.contraction.result]
    return tuple(layout.of_activation(t) for t in ends if not is_score(t))


def _matmul(op: Op, layout: Layout) -> WeightDot:
    """Axes that split the tokens before and after a matmul stay; a weight must lose these.

    All other axes are the weight's own: an activation is gathered to meet it, and its result
    scattered. The same follows from the four rules of `algebra`, without choosing between them.
    """
    inputs, result = activations(op), op.contraction.result
    (weight,) = (t for t in op.contraction.operands if t not in inputs)
    home = layout.of_weight(weight)
    tokens = _token_axes(inputs, weight, layout) & _token_axes([result], weight, layout)
    held = {d: tuple(a for a in home.axes_of(d) if a not in tokens) for d in weight.dims}

    def placed(tensor: Tensor) -> Tensor:
        axes = layout.of_activation(tensor)
        found = (held.get(d, tuple(a for a in axes.axes_of(d) if a in tokens)) for d in tensor.dims)
        return Tensor(tensor.name, tensor.dims, tuple(found))

    whole = Tensor(weight.name, weight.dims, tuple(held.values()))
    lost = tuple(axis for axis in home.sharded_over if axis in tokens)
    return WeightDot(op.name, whole, tuple(map(placed, (*inputs, result))), lost)


def _token_axes(tensors: Iterable[Tensor], weight: Tensor, layout: Layout) -> set[str]:
    placed = (layout.of_activation(t) for t in tensors)
    return {a for t in placed for d in t.dims if d not in weight.dims for a in t.axes_of(d)}

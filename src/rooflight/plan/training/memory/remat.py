"""Which activations a layer keeps for its backward pass, and which ops it recomputes.

In: the ops of one layer and a `Remat` policy. Out: `SavedActivations`. One rule for all: what the
backward pass needs is saved where the policy saves it, else the op that made it is recomputed, from
inputs for which the same holds. The input of a layer is always saved; what nothing reads is not
recomputed (the last matmul of a layer), so full rematerialisation costs less than a forward pass.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from rooflight.algebra.notation import Tensor
from rooflight.errors import UnknownNameError
from rooflight.models.graph.ops import Graph, Op


@dataclass(frozen=True, slots=True)
class Remat:
    """A policy: whether the result of an op may be saved, and where the saved ones wait."""

    name: str
    help: str
    saves: Callable[[Op], bool]
    on_host: bool = False


REMATS = {
    r.name: r
    for r in (
        Remat("none", "keep all that the backward pass reads", lambda op: True),
        Remat("dots", "keep the results of weight matmuls", lambda op: op.kind == "matmul"),
        Remat("block", "keep the input of each layer (others say full)", lambda op: False),
        Remat("offload", "block, its inputs in host memory", lambda op: False, on_host=True),
    )
}


_ON_HOST = "@host"


def parse_remat(text: str, graph: Graph) -> Remat:
    """A named policy, or the tensors to keep beside the input of each layer: `gate+up`.

    With `@host` what a policy keeps waits in host memory: `q+k+v@host`.
    """
    if text in REMATS:
        return REMATS[text]
    if text.endswith(_ON_HOST) and text != _ON_HOST:
        inner = parse_remat(text.removesuffix(_ON_HOST), graph)
        return Remat(text, f"{inner.help}, in host memory", inner.saves, on_host=True)
    made = {op.contraction.result.name for op in graph.ops if op.block is not None}
    names = tuple(name.strip() for name in text.split("+"))
    for name in names:
        if name not in made:
            known = ", ".join(sorted(made - {"scores", "weights"}))
            raise UnknownNameError(
                "remat policy or tensor",
                name,
                (),
                hint=f"choose one of {', '.join(REMATS)}, or join tensors with +: {known}",
            )
    return Remat("+".join(names), "keep the named tensors", lambda op: _result(op) in names)


def _result(op: Op) -> str:
    return op.contraction.result.name


@dataclass(frozen=True, slots=True)
class SavedActivations:
    """What one layer keeps, what it recomputes in the backward pass, and by which ops."""

    tensors: tuple[Tensor, ...]
    recomputed: tuple[Tensor, ...]
    ops: tuple[Op, ...]
    on_host: bool = False  # where the tensors wait


@dataclass(frozen=True, slots=True)
class _Value:
    """A tensor as written the n-th time: a layer writes its stream `x` twice. 0 is its input."""

    tensor: Tensor
    written: int


@dataclass(frozen=True, slots=True)
class _OpValues:
    """An op with the values it reads and writes, weights left out."""

    op: Op
    reads: tuple[_Value, ...]
    writes: _Value


def keep(ops: Sequence[Op], remat: Remat) -> SavedActivations:
    """Applies a policy to the ops of one layer, in order.

    >>> from rooflight.models.graph.build import model_graph
    >>> from rooflight.models.presets import load_model
    >>> graph = model_graph(load_model("llama3-8b"))
    >>> layer = [op for op in graph.ops if op.block == 0]
    >>> [t.name for t in keep(layer, REMATS["dots"]).tensors]
    ['x', 'q', 'k', 'v', 'attended', 'gate', 'up']
    """
    done = _trace(ops)
    needed = _needed(done)
    saved: dict[_Value, None] = {}
    recomputed: dict[_Value, None] = {}
    todo = list(needed)
    while todo:
        value = todo.pop()
        makers = [d for d in done if d.writes == value]
        if value in saved or value in recomputed:
            continue
        if not makers or (not is_score(value.tensor) and remat.saves(makers[0].op)):
            saved[value] = None
            continue
        recomputed[value] = None
        todo += [v for d in makers for v in d.reads]
    order = list(dict.fromkeys(v for d in done for v in (*d.reads, d.writes)))
    return SavedActivations(
        tuple(v.tensor for v in order if v in saved),
        tuple(v.tensor for v in order if v in recomputed and v in needed),
        tuple(d.op for d in done if d.writes in recomputed),
        remat.on_host,
    )


def is_score(tensor: Tensor) -> bool:
    """Arrays of queries by keys stay inside the attention kernel; nobody keeps them."""
    return {"T", "S"} <= set(tensor.dims)


def activations(op: Op) -> list[Tensor]:
    """What an op reads and really holds: no weights, no one-hot or zero-one operands."""
    if op.kind == "lookup":
        return []
    found = [t for t in op.contraction.operands if not t.name[0].isupper()]
    if op.kind == "route":
        found = [t for t in found if "D" in t.dims]
    return [_as_written(t) for t in found]


def _as_written(tensor: Tensor) -> Tensor:
    """Keys are written along T, as queries are, and read along S."""
    if is_score(tensor):
        return tensor
    return replace(tensor, dims=tuple("T" if d == "S" else d for d in tensor.dims))


def _trace(ops: Iterable[Op]) -> list[_OpValues]:
    written: dict[Tensor, int] = {}
    done: list[_OpValues] = []
    for op in ops:
        reads = tuple(_Value(t, written.get(t, 0)) for t in activations(op))
        result = _as_written(op.contraction.result)
        # Two ops add to the same scores; every other second writing makes a new value.
        written[result] = 1 if is_score(result) else written.get(result, 0) + 1
        done.append(_OpValues(op, reads, _Value(result, written[result])))
    return done


def _needed(done: Sequence[_OpValues]) -> list[_Value]:
    """What gradients read, and matmuls that only the loss or the router reads."""
    read = {v for d in done for v in d.reads}
    values = [v for d in done for v in _read_by_gradients(d) if not is_score(v.tensor)]
    values += [d.writes for d in done if d.op.kind == "matmul" and d.writes not in read]
    return list(dict.fromkeys(values))


def _read_by_gradients(done: _OpValues) -> tuple[_Value, ...]:
    """The gradient of a matmul reads its operands; that of a sum or of a move reads nothing."""
    is_sum = done.op.kind == "elementwise" and done.op.name.endswith(".add")
    is_dispatch = done.op.kind == "route" and "C" in done.op.contraction.result.dims
    return () if is_sum or is_dispatch else done.reads

"""`Summary`: a model's components with what each weighs and computes.

In: a `Graph` and a context. Out: one row a component, totals, and where attention takes over.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from rooflight.dtypes import Dtype
from rooflight.models.graph.count import (
    count_params,
    dim_sizes,
    forward_flops,
    kv_bytes,
    kv_bytes_per_token,
    op_flops,
    param_bytes,
    param_count,
)
from rooflight.models.graph.ops import Graph, Op

_LONGEST = 2**40  # positions; a model whose windows keep attention below the rest has no answer


@dataclass(frozen=True, slots=True)
class Component:
    """One part of the model over all layers."""

    name: str
    params: int
    active_params: int
    nbytes: int
    flops_per_token: float
    kv_bytes_per_token: int


@dataclass(frozen=True, slots=True)
class Summary:
    """The table of `rooflight model`."""

    components: tuple[Component, ...]
    params: int
    active_params: int
    nbytes: int
    seq: int
    flops_per_token: float  # forward, causal, averaged over a sequence of `seq`
    attention_share: float  # of those FLOPs, the part that queries, keys and values cost
    kv_bytes_per_token: int
    kv_bytes: int  # of one sequence of `seq`
    equal_seq_causal: int | None  # the context where attention costs as much as all the rest
    equal_seq_full: int | None


def summarize(graph: Graph, *, seq: int, dtype: Dtype) -> Summary:
    """Counts every component at one context.

    >>> from rooflight.dtypes import DTYPES
    >>> from rooflight.models.graph.build import model_graph
    >>> from rooflight.models.presets import load_model
    >>> found = summarize(model_graph(load_model("llama3-8b")), seq=8192, dtype=DTYPES["bf16"])
    >>> found.params, found.kv_bytes_per_token
    (8030261248, 131072)
    """
    names = dict.fromkeys([*map(_component, graph.ops), *map(_component, graph.params)])
    rows = tuple(_row(graph, name, seq, dtype) for name in names)
    total = forward_flops(graph, batch=1, seq=seq, causal=True)
    return Summary(
        components=tuple(r for r in rows if r.params or r.flops_per_token),
        params=count_params(graph),
        active_params=count_params(graph, active=True),
        nbytes=param_bytes(graph, dtype),
        seq=seq,
        flops_per_token=total / seq,
        attention_share=float(_attention_flops(graph, seq, causal=True) / total),
        kv_bytes_per_token=kv_bytes_per_token(graph, dtype),
        kv_bytes=kv_bytes(graph, batch=1, seq=seq, dtype=dtype),
        equal_seq_causal=attention_equals_rest(graph, causal=True),
        equal_seq_full=attention_equals_rest(graph, causal=False),
    )


def _component(item: object) -> str:
    """Norms together, the matmuls of queries, keys and values apart from their projections."""
    if isinstance(item, Op) and item.kind == "attention":
        return "scores"
    part = str(getattr(item, "part", ""))
    return "norms" if part.endswith("_norm") else part


def _row(graph: Graph, name: str, seq: int, dtype: Dtype) -> Component:
    params = [p for p in graph.params if _component(p) == name]
    flops = _flops((op for op in graph.ops if _component(op) == name), graph, seq, causal=True)
    return Component(
        name=name,
        params=math.ceil(sum(param_count(graph, p) for p in params)),
        active_params=math.ceil(sum(param_count(graph, p, active=True) for p in params)),
        nbytes=sum(dtype.nbytes(int(param_count(graph, p))) for p in params),
        flops_per_token=float(flops / seq),
        kv_bytes_per_token=kv_bytes_per_token(graph, dtype) if name == "attention" else 0,
    )


def _flops(ops: Iterable[Op], graph: Graph, seq: int, *, causal: bool) -> Fraction:
    sizes = dim_sizes(graph, batch=1, seq=seq) | {
        name: share * seq for name, share in graph.per_token.items()
    }
    return Fraction(sum(op.count * op_flops(op, sizes, causal=causal) for op in ops))


def _attention_flops(graph: Graph, seq: int, *, causal: bool) -> Fraction:
    return _flops((op for op in graph.ops if op.kind == "attention"), graph, seq, causal=causal)


def attention_equals_rest(graph: Graph, *, causal: bool) -> int | None:
    """The shortest context whose attention FLOPs reach those of every other matmul.

    The book's rule is T = 8D for a dense model with F = 4D (chapter 4); windows may keep
    attention below the rest at any length, which is None.
    """

    def reached(seq: int) -> bool:
        total = forward_flops(graph, batch=1, seq=seq, causal=causal)
        return 2 * _attention_flops(graph, seq, causal=causal) >= total

    if not reached(_LONGEST):
        return None
    low, high = 0, _LONGEST  # attention grows faster than the rest: bisect
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if reached(middle) else (middle, high)
    return high

"""Counts, all of them sums over the ops, params and caches of a graph.

In: a `Graph` and the sizes of the batch. Out: parameters, FLOPs, bytes, elements. Matrix FLOPs
only, two a multiply-add, as in the book (chapter 4); elementwise work is not counted.
"""

import math
from collections.abc import Iterable, Mapping
from fractions import Fraction

from rooflight.algebra.autodiff import backward
from rooflight.algebra.notation import Tensor
from rooflight.dtypes import Dtype
from rooflight.models.graph.ops import HAS_FLOPS, Graph, Op, Param

Sizes = Mapping[str, int | Fraction]


def dim_sizes(graph: Graph, *, batch: int, seq: int, queries: int | None = None) -> dict[str, int]:
    """The size of every dim; C is rounded up to whole tokens.

    `queries` are the last positions of each sequence, all of them if left out; 1 is decoding.

    >>> from rooflight.models.graph.build import model_graph
    >>> from rooflight.models.presets import load_model
    >>> sizes = dim_sizes(model_graph(load_model("mixtral-8x7b")), batch=2, seq=4096)
    >>> sizes["T"], sizes["C"], sizes["K"], sizes["G"]
    (4096, 2048, 8, 4)
    """
    sizes = _exact_sizes(graph, batch, seq, queries)
    return {name: math.ceil(size) for name, size in sizes.items()}


def _exact_sizes(graph: Graph, batch: int, seq: int, queries: int | None) -> Sizes:
    """With C a fraction, so that sums over experts are exact for any number of tokens."""
    asked = seq if queries is None else queries
    tokens = batch * asked
    received = {name: share * tokens for name, share in graph.per_token.items()}
    return {"B": batch, "T": asked, "S": seq, **graph.sizes, **received}


def elements(tensor: Tensor, sizes: Sizes) -> int:
    """Elements of one tensor, unsharded."""
    return math.ceil(math.prod(sizes[d] for d in tensor.dims))


def count_params(graph: Graph, *, active: bool = False, parts: Iterable[str] | None = None) -> int:
    """Parameters of the whole model, or those that one token uses, or of some parts only.

    >>> from rooflight.models.graph.build import model_graph
    >>> from rooflight.models.presets import load_model
    >>> count_params(model_graph(load_model("llama3-8b")))
    8030261248
    """
    wanted = None if parts is None else set(parts)
    total = sum(
        param_count(graph, p, active=active)
        for p in graph.params
        if wanted is None or p.part in wanted
    )
    return math.ceil(total)


def param_count(graph: Graph, param: Param, *, active: bool = False) -> int | Fraction:
    """Elements of one param, over all the layers that have it."""
    share = param.active if active else 1
    return param.count * elements(param.tensor, graph.sizes) * share


def param_bytes(graph: Graph, dtype: Dtype) -> int:
    """Bytes of the weights, each tensor packed by itself."""
    return sum(p.count * dtype.nbytes(elements(p.tensor, graph.sizes)) for p in graph.params)


def op_flops(op: Op, sizes: Sizes, *, causal: bool) -> int | Fraction:
    """Matrix FLOPs of one op, once: 2 x the product of its dims, masked pairs left out."""
    if op.kind not in HAS_FLOPS:
        return 0
    product = 2 * math.prod(sizes[d] for d in op.contraction.dims)
    return product * _visible(op, sizes, causal=causal)


def _visible(op: Op, sizes: Sizes, *, causal: bool) -> Fraction:
    """The part of all query-key pairs that is multiplied."""
    if op.mask is None:
        return Fraction(1)
    queries, keys = int(sizes["T"]), int(sizes["S"])
    return Fraction(op.mask.pairs(queries, keys, causal=causal), queries * keys)


def forward_flops(
    graph: Graph, *, batch: int, seq: int, causal: bool, queries: int | None = None
) -> int:
    """Matrix FLOPs of a forward pass.

    `causal` counts the pairs that a causal mask lets through, T(T+1)/2 a head; False counts all
    T x T, as PaLM's appendix B and most frameworks do.

    >>> from rooflight.models.graph.build import model_graph
    >>> from rooflight.models.presets import load_model
    >>> forward_flops(model_graph(load_model("llama3-8b")), batch=1, seq=8192, causal=True)
    140550657277952
    """
    sizes = _exact_sizes(graph, batch, seq, queries)
    return math.ceil(sum(op.count * op_flops(op, sizes, causal=causal) for op in graph.ops))


def backward_flops(graph: Graph, *, batch: int, seq: int, causal: bool) -> int:
    """Matrix FLOPs of the backward pass: one contraction for each operand of a forward one.

    Twice the forward pass, since every contraction has two operands and keeps its dims.
    """
    sizes = _exact_sizes(graph, batch, seq, None)
    total = sum(
        op.count * len(backward(op.contraction)) * op_flops(op, sizes, causal=causal)
        for op in graph.ops
        if op.kind in HAS_FLOPS
    )
    return math.ceil(total)


def training_flops(graph: Graph, *, batch: int, seq: int, causal: bool) -> int:
    """Matrix FLOPs of a training step without recomputation."""
    forward = forward_flops(graph, batch=batch, seq=seq, causal=causal)
    return forward + backward_flops(graph, batch=batch, seq=seq, causal=causal)


def kv_bytes_per_token(graph: Graph, dtype: Dtype) -> int:
    """Bytes that one more token adds to the KV cache while it is shorter than every window.

    >>> from rooflight.dtypes import DTYPES
    >>> from rooflight.models.graph.build import model_graph
    >>> from rooflight.models.presets import load_model
    >>> kv_bytes_per_token(model_graph(load_model("llama2-13b")), DTYPES["int8"])
    409600
    """
    return kv_bytes(graph, batch=1, seq=1, dtype=dtype)


def kv_bytes(graph: Graph, *, batch: int, seq: int, dtype: Dtype) -> int:
    """Bytes of the KV cache of `batch` sequences, a windowed layer keeping its window only."""
    total = 0
    for cache in graph.caches:
        kept = seq if cache.window is None else min(seq, cache.window)
        sizes = {**graph.sizes, "B": batch, "S": kept}
        total += cache.count * dtype.nbytes(elements(cache.tensor, sizes))
    return total

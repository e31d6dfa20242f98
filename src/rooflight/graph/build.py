"""A model's graph: the frame around the layers and one fragment for each different block.

In: a `ModelSpec`. Out: a `Graph`. Everything that is counted anywhere is read off this graph.
"""

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from typing import TypeVar

from rooflight.algebra import Contraction, Tensor
from rooflight.graph.attention import attention_sizes, write_attention
from rooflight.graph.fragment import Fragment
from rooflight.graph.mlp import mlp_sizes, tokens_per_expert, write_mlp
from rooflight.graph.ops import Graph
from rooflight.specs.model import Block, ModelSpec, Norm, NormPlace

Renames = Mapping[str, str]
Size = TypeVar("Size", int, Fraction)


@lru_cache(maxsize=64)
def model_graph(model: ModelSpec, *, absorbed: bool = False) -> Graph:
    """Writes a model as contractions; `absorbed` has latent attention as decoding does it.

    >>> from rooflight.specs import load_model
    >>> print(model_graph(load_model("llama3-8b")).ops[2].contraction)
    h[B,T,D] * W_q[D,K,G,H] -> q[B,T,K,G,H]
    """
    start, end = _embedding(model), _head(model)
    ops, params, caches = list(start.ops), list(start.params), list(start.caches)
    sizes: dict[str, int] = {"D": model.d_model, "V": model.vocab}
    if model.num_positions:
        sizes["L"] = model.num_positions
    per_token: dict[str, Fraction] = {}
    for index, (block, count) in enumerate(zip(model.blocks, model.block_counts, strict=True)):
        part = _block(block, model.norm, absorbed=absorbed)
        wanted = attention_sizes(block.attention) | mlp_sizes(block.mlp)
        names = _settle(sizes, wanted) | _settle(per_token, tokens_per_expert(block.mlp))
        where = {"block": index, "count": count}
        ops += [replace(o, contraction=_rename(o.contraction, names), **where) for o in part.ops]
        params += [replace(p, tensor=_renamed(p.tensor, names), **where) for p in part.params]
        caches += [replace(c, tensor=_renamed(c.tensor, names), **where) for c in part.caches]
    ops, params = [*ops, *end.ops], [*params, *end.params]
    order = tuple(model.blocks.index(block) for block in model.layer_blocks)
    return Graph(tuple(ops), tuple(params), tuple(caches), sizes, per_token, order)


def _settle(taken: dict[str, Size], wanted: Mapping[str, Size]) -> dict[str, str]:
    """Finds each dim a name: its own, or with a number where another size has it already."""
    names: dict[str, str] = {}
    for name, size in wanted.items():
        free, number = name, 1
        while taken.get(free, size) != size:
            number += 1
            free = f"{name}{number}"
        taken[free] = size
        names[name] = free
    return names


def _renamed(tensor: Tensor, names: Renames) -> Tensor:
    return replace(tensor, dims=tuple(names.get(d, d) for d in tensor.dims))


def _rename(contraction: Contraction, names: Renames) -> Contraction:
    operands = tuple(_renamed(t, names) for t in contraction.operands)
    return Contraction(operands, _renamed(contraction.result, names))


def _embedding(model: ModelSpec) -> Fragment:
    part = Fragment()
    part.op("embedding.tokens", "onehot[B,T,V] * W_embed[V,D] -> x[B,T,D]", "lookup")
    if model.num_positions:
        part.param("embedding", "W_positions[L,D]")
    return part


def _head(model: ModelSpec) -> Fragment:
    part = Fragment()
    if model.has_final_norm:
        _norm(part, "final_norm", "x[B,T,D] -> h", model.norm)
    bias = "B_head[V]" if model.head_bias else ""
    if model.is_tied:  # the weight is already there, as a param of the embedding
        part.op("head.logits", "h[B,T,D] * W_embed[V,D] -> logits[B,T,V]", bias=bias)
        part.params = [p for p in part.params if p.name != "head.W_embed"]
        names = ("embedding.W_embed", *(p.name for p in part.params if p.part == "head"))
        part.ops[-1] = replace(part.ops[-1], params=names)
    else:
        part.op("head.logits", "h[B,T,D] * W_head[D,V] -> logits[B,T,V]", bias=bias)
    return part


def _norm(part: Fragment, name: str, text: str, norm: Norm) -> None:
    part.norm(name, text, has_scale=norm.has_scale, has_bias=norm.has_bias)


def _block(block: Block, norm: Norm, *, absorbed: bool) -> Fragment:
    """Both halves read the stream `x[B,T,D]`, normed where the block has a norm, and add to it."""
    part = Fragment()

    def normed(place: NormPlace, source: str, result: str) -> str:
        if place not in block.norms:
            return source
        _norm(part, f"{place}_norm", f"{source}[B,T,D] -> {result}", norm)
        return result

    start = normed("block_in", "x", "h")
    source = normed("attention_in", start, "h")
    write_attention(part, block.attention, source, absorbed=absorbed)
    attended = normed("attention_out", "attended", "attended_normed")
    if block.is_parallel:
        write_mlp(part, block.mlp, normed("mlp_in", start, "m"))
        fed = normed("mlp_out", "fed", "fed_normed")
        both = f"x[B,T,D] * {attended}[B,T,D] * {fed}[B,T,D] -> x[B,T,D]"
        part.op("mlp.add", both, "elementwise")
        return part
    part.op("attention.add", f"x[B,T,D] * {attended}[B,T,D] -> x[B,T,D]", "elementwise")
    write_mlp(part, block.mlp, normed("mlp_in", "x", "m"))
    fed = normed("mlp_out", "fed", "fed_normed")
    part.op("mlp.add", f"x[B,T,D] * {fed}[B,T,D] -> x[B,T,D]", "elementwise")
    return part

"""A model's graph: the frame around the layers and one fragment for each different block.

In: a `ModelSpec`. Out: a `Graph`. Everything that is counted anywhere is read off this graph.

`Fragment`: ops being written down, one line each, with their weights read off the line. A fragment
grows while a graph is built and is not seen outside of it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache
from typing import TypeVar

from rooflight.algebra.notation import Contraction, Tensor, parse_contraction, parse_tensor
from rooflight.models.graph.ops import Cache, Graph, Kind, Mask, Op, Param
from rooflight.models.spec import Attention, Block, Latent, Mlp, ModelSpec, Moe, Norm, NormPlace

Renames = Mapping[str, str]
Size = TypeVar("Size", int, Fraction)


@dataclass(slots=True)
class Fragment:
    """One part of a block or of the frame around the blocks."""

    ops: list[Op] = field(default_factory=list[Op])
    params: list[Param] = field(default_factory=list[Param])
    caches: list[Cache] = field(default_factory=list[Cache])

    def op(
        self,
        name: str,
        text: str,
        kind: Kind = "matmul",
        *,
        mask: Mask | None = None,
        active: Fraction = Fraction(1),
        bias: str = "",
    ) -> None:
        """Adds `part.op`; each operand with a capital name becomes a param of the part."""
        contraction = parse_contraction(text)
        weights = [t for t in contraction.operands if t.name[0].isupper()]
        weights += [parse_tensor(bias)] if bias else []
        part = name.partition(".")[0]
        for tensor in weights:
            self.param(part, tensor, active=active)
        names = tuple(f"{part}.{t.name}" for t in weights)
        self.ops.append(Op(name, kind, contraction, mask=mask, params=names))

    def param(self, part: str, tensor: Tensor | str, *, active: Fraction = Fraction(1)) -> None:
        """Adds a param; a tensor as text where no op names it."""
        tensor = parse_tensor(tensor) if isinstance(tensor, str) else tensor
        self.params.append(Param(f"{part}.{tensor.name}", tensor, active=active))

    def cache(self, text: str, *, window: int | None) -> None:
        tensor = parse_tensor(text)
        self.caches.append(Cache(f"attention.{tensor.name}", tensor, window=window))

    def norm(self, part: str, text: str, *, has_scale: bool = True, has_bias: bool = False) -> None:
        """Adds a norm over the last dim of `x[...]`, written `x[B,T,D] -> h`."""
        source, _, result = text.partition(" -> ")
        dims = parse_tensor(source).dims
        scale = f" * Scale[{dims[-1]}]" if has_scale else ""
        target = f"{result}[{','.join(dims)}]"
        bias = f"Bias[{dims[-1]}]" if has_bias else ""
        self.op(f"{part}.norm", f"{source}{scale} -> {target}", "elementwise", bias=bias)


@lru_cache(maxsize=64)
def model_graph(model: ModelSpec, *, absorbed: bool = False) -> Graph:
    """Writes a model as contractions; `absorbed` has latent attention as decoding does it.

    >>> from rooflight.models.presets import load_model
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


# The contractions of one feed-forward layer: dense, or routed and shared experts.


def write_mlp(part: Fragment, mlp: Mlp | Moe, source: str) -> None:
    """From the input `source[B,T,D]` to `fed[B,T,D]`."""
    if isinstance(mlp, Mlp):
        _dense(part, mlp, "mlp", source=source, width="F", result="fed")
    else:
        _moe(part, mlp, source)


def mlp_sizes(mlp: Mlp | Moe) -> dict[str, int]:
    """The sizes of the dims that the layer brings."""
    if isinstance(mlp, Mlp):
        return {"F": mlp.width}
    shared = {"Fs": mlp.shared.width} if mlp.shared else {}
    return {"E": mlp.num_experts, "Fe": mlp.expert.width} | shared


def tokens_per_expert(mlp: Mlp | Moe) -> dict[str, Fraction]:
    """C for each token of the batch: k / E."""
    return {"C": _share(mlp)} if isinstance(mlp, Moe) else {}


def _share(moe: Moe) -> Fraction:
    return Fraction(moe.experts_per_token, moe.num_experts)


def _dense(part: Fragment, mlp: Mlp, name: str, *, source: str, width: str, result: str) -> None:
    x, biased = f"{source}[B,T,D]", mlp.has_bias
    if mlp.is_gated:
        gate = f"{x} * W_gate[D,{width}] -> gate[B,T,{width}]"
        part.op(f"{name}.gate", gate, bias=f"B_gate[{width}]" if biased else "")
    up = f"{x} * W_in[D,{width}] -> up[B,T,{width}]"
    part.op(f"{name}.in", up, bias=f"B_in[{width}]" if biased else "")
    part.op(f"{name}.act", _activation(mlp, f"[B,T,{width}]"), "elementwise")
    down = f"hidden[B,T,{width}] * W_out[{width},D] -> {result}[B,T,D]"
    part.op(f"{name}.out", down, bias="B_out[D]" if biased else "")


def _moe(part: Fragment, moe: Moe, source: str) -> None:
    x = f"{source}[B,T,D]"
    bias = "B_router[E]" if moe.has_router_bias else ""
    part.op("router.scores", f"{x} * W_router[D,E] -> routed[B,T,E]", bias=bias)
    part.op("experts.dispatch", f"sent[B,T,E,C] * {x} -> sent_x[E,C,D]", "route")
    _experts(part, moe)
    part.op("experts.combine", "sent[B,T,E,C] * fed_x[E,C,D] -> fed[B,T,D]", "route")
    if moe.shared:
        _dense(part, moe.shared, "shared", source=source, width="Fs", result="fed_shared")
        if moe.has_shared_gate:
            part.param("shared", "W_shared_gate[D]")
        part.op("shared.add", "fed[B,T,D] * fed_shared[B,T,D] -> fed[B,T,D]", "elementwise")


def _experts(part: Fragment, moe: Moe) -> None:
    """The dense layer with an expert dim in every weight, and E, C in place of B, T."""
    active, biased = _share(moe), moe.expert.has_bias
    if moe.expert.is_gated:
        gate = "sent_x[E,C,D] * W_gate[E,D,Fe] -> gate[E,C,Fe]"
        part.op("experts.gate", gate, active=active, bias="B_gate[E,Fe]" if biased else "")
    up = "sent_x[E,C,D] * W_in[E,D,Fe] -> up[E,C,Fe]"
    part.op("experts.in", up, active=active, bias="B_in[E,Fe]" if biased else "")
    part.op("experts.act", _activation(moe.expert, "[E,C,Fe]"), "elementwise")
    down = "hidden[E,C,Fe] * W_out[E,Fe,D] -> fed_x[E,C,D]"
    part.op("experts.out", down, active=active, bias="B_out[E,D]" if biased else "")


def _activation(mlp: Mlp, dims: str) -> str:
    return f"gate{dims} * up{dims} -> hidden{dims}" if mlp.is_gated else f"up{dims} -> hidden{dims}"


# The contractions of one attention layer: grouped queries, or a key-value latent.


def write_attention(
    part: Fragment, attention: Attention, source: str, *, absorbed: bool = False
) -> None:
    """From the input `source[B,T,D]` to `attended[B,T,D]`; `absorbed` reads latents as keys."""
    if attention.latent:
        _latent(part, attention, attention.latent, f"{source}[B,T,D]", absorbed=absorbed)
    else:
        _grouped(part, attention, f"{source}[B,T,D]")


def attention_sizes(attention: Attention) -> dict[str, int]:
    """The sizes of the dims that the layer brings."""
    latent = attention.latent
    if latent is None:
        groups = attention.num_heads // attention.num_kv_heads
        return {"K": attention.num_kv_heads, "G": groups, "H": attention.head_dim}
    ranks = {"Q": latent.query_rank} if latent.query_rank else {}
    heads = {"N": attention.num_heads, "H": attention.head_dim}
    return heads | ranks | {"R": latent.kv_rank, "P": latent.rope_dim, "Hv": latent.value_dim}


def _grouped(part: Fragment, attention: Attention, x: str) -> None:
    """K kv heads, each read by G query heads (chapter 4)."""
    biased = attention.qkv_bias
    query = f"{x} * W_q[D,K,G,H] -> q[B,T,K,G,H]"
    part.op("attention.q", query, bias="B_q[K,G,H]" if biased else "")
    if not attention.shares_kv:
        bias_k, bias_v = ("B_k[K,H]", "B_v[K,H]") if biased else ("", "")
        part.op("attention.k", f"{x} * W_k[D,K,H] -> k[B,T,K,H]", bias=bias_k)
        part.op("attention.v", f"{x} * W_v[D,K,H] -> v[B,T,K,H]", bias=bias_v)
        part.cache("k[B,S,K,H]", window=attention.window)
        part.cache("v[B,S,K,H]", window=attention.window)
    if attention.qk_norm:
        _qk_norm(part, attention)
    _multiply(part, attention, heads="K,G", keys="K", value="H")
    bias = "B_o[D]" if attention.out_bias else ""
    out = "attended_heads[B,T,K,G,H] * W_o[K,G,H,D] -> attended[B,T,D]"
    part.op("attention.out", out, bias=bias)


def _qk_norm(part: Fragment, attention: Attention) -> None:
    """Scales of one head, or of all heads together."""
    whole = attention.qk_norm == "all"
    q, k = ("K,G,H", "K,H") if whole else ("H", "H")
    part.op("attention.q_norm", f"q[B,T,K,G,H] * Q_scale[{q}] -> q[B,T,K,G,H]", "elementwise")
    if not attention.shares_kv:
        part.op("attention.k_norm", f"k[B,T,K,H] * K_scale[{k}] -> k[B,T,K,H]", "elementwise")


def _multiply(part: Fragment, attention: Attention, *, heads: str, keys: str, value: str) -> None:
    """Scores, softmax, weighted values."""
    score = f"q[B,T,{heads},H] * k[B,S,{keys},H] -> scores[B,T,S,{heads}]"
    mixed = f"attended_heads[B,T,{heads},{value}]"
    mix = f"weights[B,T,S,{heads}] * v[B,S,{keys},{value}] -> {mixed}"
    _attend(part, attention, score, mix, heads)


def _attend(part: Fragment, attention: Attention, score: str, mix: str, heads: str) -> None:
    """The two matmuls of queries, keys and values, and the softmax between them."""
    mask = Mask(attention.window)
    scores = f"scores[B,T,S,{heads}]"
    part.op("attention.scores", score, "attention", mask=mask)
    if attention.latent:
        rotary = f"q_rope[B,T,{heads},P] * k_rope[B,S,P] -> {scores}"
        part.op("attention.rope_scores", rotary, "attention", mask=mask)
    part.op("attention.softmax", f"{scores} -> weights[B,T,S,{heads}]", "elementwise", mask=mask)
    if attention.has_sinks:
        part.param("attention", f"Sinks[{heads}]")
    part.op("attention.mix", mix, "attention", mask=mask)


def _latent(
    part: Fragment, attention: Attention, latent: Latent, x: str, *, absorbed: bool
) -> None:
    """Multi-head latent attention, expanded to plain heads, as in training and prefill.

    Absorbed, as in decoding: queries go to the rank of the latents and meet them as they are kept.
    """
    biased = attention.qkv_bias
    source, rank = x, "D"
    if latent.query_rank:
        down = f"{x} * W_dq[D,Q] -> q_down[B,T,Q]"
        part.op("attention.q_down", down, bias="B_dq[Q]" if biased else "")
        part.norm("attention_q_norm", "q_down[B,T,Q] -> q_latent")
        source, rank = "q_latent[B,T,Q]", "Q"
    part.op("attention.q", f"{source} * W_uq[{rank},N,H] -> q[B,T,N,H]")
    part.op("attention.q_rope", f"{source} * W_qr[{rank},N,P] -> q_rope[B,T,N,P]")
    down, rope = f"{x} * W_dkv[D,R] -> kv_down[B,T,R]", f"{x} * W_kr[D,P] -> k_rope[B,T,P]"
    part.op("attention.kv_down", down, bias="B_dkv[R]" if biased else "")
    part.op("attention.k_rope", rope, bias="B_kr[P]" if biased else "")
    part.norm("attention_kv_norm", "kv_down[B,T,R] -> kv_latent")
    part.cache("kv_latent[B,S,R]", window=attention.window)
    part.cache("k_rope[B,S,P]", window=attention.window)
    if absorbed:
        part.op("attention.q_absorb", "q[B,T,N,H] * W_uk[R,N,H] -> q_absorbed[B,T,N,R]")
        score = "q_absorbed[B,T,N,R] * kv_latent[B,S,R] -> scores[B,T,S,N]"
        mix = "weights[B,T,S,N] * kv_latent[B,S,R] -> mixed[B,T,N,R]"
        _attend(part, attention, score, mix, "N")
        part.op("attention.v_up", "mixed[B,T,N,R] * W_uv[R,N,Hv] -> attended_heads[B,T,N,Hv]")
    else:
        part.op("attention.k", "kv_latent[B,T,R] * W_uk[R,N,H] -> k[B,T,N,H]")
        part.op("attention.v", "kv_latent[B,T,R] * W_uv[R,N,Hv] -> v[B,T,N,Hv]")
        _multiply(part, attention, heads="N", keys="N", value="Hv")
    out = "attended_heads[B,T,N,Hv] * W_o[N,Hv,D] -> attended[B,T,D]"
    part.op("attention.out", out, bias="B_o[D]" if attention.out_bias else "")

"""The contractions of one attention layer: grouped queries, or a key-value latent.

In: an `Attention`. Out: lines of a `Fragment`. Rotary embeddings work in place: not listed.
"""

from rooflight.graph.fragment import Fragment
from rooflight.graph.ops import Mask
from rooflight.specs.model import Attention, Latent


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
    """The two products of queries, keys and values, and the softmax between them."""
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

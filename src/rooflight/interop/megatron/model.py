"""The sizes of a model as arguments of Megatron-LM."""

from rooflight.interop.framework import Loss, Settings
from rooflight.interop.sizes import Sizes, has_numbers, plain_sizes
from rooflight.specs.model import Attention, Mlp, ModelSpec, Moe

_MULTIPLE = 128  # of which, times the tensor ranks, the vocabulary is made a multiple


def model_arguments(model: ModelSpec, *, seq: int, tensor: int) -> tuple[Settings, list[Loss]]:
    """The arguments of a decoder with one kind of attention, and what they leave out."""
    longest = max(seq, model.max_seq or 0, model.num_positions)
    sizes, losses = plain_sizes(model, positions=longest)
    width = sizes.mlp or (sizes.moe.expert if sizes.moe else None)
    assert width is not None, "a layer has an MLP or experts"
    settings: Settings = {
        "num-layers": sizes.num_layers,
        "hidden-size": model.d_model,
        "ffn-hidden-size": width.width,
        **_attention(sizes.attention),
        **(_experts(sizes, sizes.moe) if sizes.moe else {}),
        "vocab-size": model.vocab,
        **_padding(model, tensor),
        "max-position-embeddings": longest,
        **_positions(model, sizes.attention),
        "normalization": "RMSNorm" if model.norm.kind == "rms" else "LayerNorm",
    }
    if width.is_gated:
        settings["swiglu"] = True
    if not model.is_tied:
        settings["untie-embeddings-and-output-weights"] = True
    return settings | _biases(sizes, width), losses + _unsaid(model, sizes)


def _padding(model: ModelSpec, tensor: int) -> Settings:
    """The largest multiple up to the default that leaves the vocabulary as it is, else 1."""
    fits = [n for n in (128, 64, 32, 16, 8, 4, 2) if model.vocab % (n * tensor) == 0]
    multiple = fits[0] if fits else 1
    return {} if multiple == _MULTIPLE else {"make-vocab-size-divisible-by": multiple}


def _positions(model: ModelSpec, attention: Attention) -> Settings:
    """The base of rotary positions is written where it was read; a preset has sizes alone."""
    if model.num_positions:
        return {"position-embedding-type": "learned_absolute"}
    if attention.rope is None:
        return {"position-embedding-type": "none"}
    rotary: Settings = {"position-embedding-type": "rope"}
    if has_numbers(model):
        rotary["rotary-base"] = round(attention.rope.theta)  # an int there
    return rotary


def _attention(attention: Attention) -> Settings:
    settings: Settings = {"num-attention-heads": attention.num_heads}
    if attention.qk_norm:
        settings["qk-layernorm"] = True
    latent = attention.latent
    if latent is None:
        shared = attention.num_kv_heads < attention.num_heads
        groups: Settings = {"num-query-groups": attention.num_kv_heads}
        grouped: Settings = {"group-query-attention": True, **groups} if shared else {}
        return settings | grouped | {"kv-channels": attention.head_dim}
    ranks: Settings = {"q-lora-rank": latent.query_rank} if latent.query_rank else {}
    return settings | {
        "multi-latent-attention": True,
        **ranks,
        "kv-lora-rank": latent.kv_rank,
        "qk-head-dim": attention.head_dim,
        "qk-pos-emb-head-dim": latent.rope_dim,
        "v-head-dim": latent.value_dim,
    }


def _experts(sizes: Sizes, moe: Moe) -> Settings:
    settings: Settings = {
        "num-experts": moe.num_experts,
        "moe-router-topk": moe.experts_per_token,
        "moe-ffn-hidden-size": moe.expert.width,
        "moe-token-dispatcher-type": "alltoall",
    }
    if moe.shared:
        settings["moe-shared-expert-intermediate-size"] = moe.shared.width
    if moe.has_shared_gate:
        settings["moe-shared-expert-gate"] = True
    if sizes.num_dense:
        routed = sizes.num_layers - sizes.num_dense
        settings["moe-layer-freq"] = f"([0]*{sizes.num_dense}+[1]*{routed})"
    return settings


def _biases(sizes: Sizes, mlp: Mlp) -> Settings:
    attention = sizes.attention
    if mlp.has_bias and attention.qkv_bias and attention.out_bias:
        return {}
    settings: Settings = {"disable-bias-linear": True}
    return settings | ({"add-qkv-bias": True} if attention.qkv_bias else {})


def _unsaid(model: ModelSpec, sizes: Sizes) -> list[Loss]:
    attention, mlp = sizes.attention, sizes.mlp
    some = [attention.out_bias, mlp.has_bias if mlp else False]
    what = f"model {model.name}"
    losses = [Loss(what, _numbers(model), is_material=False)]
    if any(some) and not (all(some) and attention.qkv_bias):
        losses.append(Loss(what, "there is one switch for all biases but those of q, k and v"))
    return losses


def _numbers(model: ModelSpec) -> str:
    if has_numbers(model):
        return "of what is no size only the base of rotary positions is written, if there is one"
    return "the base of rotary positions is not known; a model from a config.json has it"

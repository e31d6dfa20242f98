"""One function a family of Hugging Face models with experts: which keys make which sizes.

In: an `HfConfig`. Out: a `ModelSpec` without its name.
"""

from dataclasses import replace

from rooflight.models.huggingface.config import HfConfig
from rooflight.models.huggingface.numbers import activation, latent_scale, rotary, rotated_part
from rooflight.models.huggingface.parts import (
    decoder,
    heads_of,
    qwen3_attention,
    qwen_windows,
    windows_of,
)
from rooflight.models.spec import Attention, Block, Latent, Mlp, ModelSpec, Moe


def mixtral(config: HfConfig) -> ModelSpec:
    window, rope = config.maybe_whole("sliding_window"), rotary(config, theta=1e6)
    attention = Attention(*heads_of(config, kv_heads=8), window=window, rope=rope)
    experts = config.whole("num_local_experts", 8)
    expert = Mlp(config.whole("intermediate_size"), activation=activation(config))
    moe = Moe(experts, config.whole("num_experts_per_tok", 2), expert)
    return decoder(config, [Block(attention, moe)] * config.whole("num_hidden_layers"), eps=1e-5)


def _qwen_mlps(config: HfConfig, moe: Moe) -> list[Mlp | Moe]:
    """Experts in every `decoder_sparse_step`-th layer, less the layers listed as dense."""
    step, dense = config.whole("decoder_sparse_step", 1), config.indices("mlp_only_layers")
    mlp = Mlp(config.whole("intermediate_size"), activation=activation(config))
    layers = range(config.whole("num_hidden_layers"))
    return [moe if i not in dense and (i + 1) % step == 0 else mlp for i in layers]


def qwen3_moe(config: HfConfig) -> ModelSpec:
    expert = Mlp(config.whole("moe_intermediate_size"), activation=activation(config))
    written = "num_local_experts" if config.get("num_local_experts") else "num_experts"
    experts = config.whole(written), config.whole("num_experts_per_tok")
    moe = Moe(*experts, expert, normalizes=config.flag("norm_topk_prob", default=False))
    config.used.add("max_window_layers")  # here every layer slides, if any does
    pairs = zip(qwen_windows(config, first=0), _qwen_mlps(config, moe), strict=True)
    blocks = [
        Block(qwen3_attention(config, window, kv_heads=4, head_dim=None), mlp)
        for window, mlp in pairs
    ]
    return decoder(config, blocks)


def qwen2_moe(config: HfConfig) -> ModelSpec:
    expert = Mlp(config.whole("moe_intermediate_size"))
    shared = Mlp(config.whole("shared_expert_intermediate_size"))
    experts = config.whole("num_experts"), config.whole("num_experts_per_tok")
    moe = Moe(
        *experts,
        expert,
        shared=shared,
        has_shared_gate=True,
        normalizes=config.flag("norm_topk_prob", default=False),
    )
    heads, rope = heads_of(config, kv_heads=16), rotary(config)
    biased = config.flag("qkv_bias", default=True)
    pairs = zip(qwen_windows(config), _qwen_mlps(config, moe), strict=True)
    blocks = [
        Block(Attention(*heads, window=w, qkv_bias=biased, rope=rope), mlp) for w, mlp in pairs
    ]
    return decoder(config, blocks)


def _latent_attention(config: HfConfig) -> Attention:
    """One latent for keys and values; each head has a part with and one without positions."""
    heads = config.whole("num_attention_heads")
    config.used |= {"num_key_value_heads", "head_dim"}  # always one kv head a query head
    query_rank = config.maybe_whole("q_lora_rank") if "q_lora_rank" in config.values else 1536
    config.used.add("q_lora_rank")
    latent = Latent(
        query_rank=query_rank,
        kv_rank=config.whole("kv_lora_rank", 512),
        rope_dim=config.whole("qk_rope_head_dim", 64),
        value_dim=config.whole("v_head_dim", 128),
    )
    biased = config.flag("attention_bias", default=False)
    size = config.whole("qk_nope_head_dim", 128)
    interleaved = config.flag("rope_interleave", default=True)
    return Attention(
        *(heads, heads, size),
        latent=latent,
        qkv_bias=biased,
        out_bias=biased,
        rope=rotary(config, interleaved=interleaved),
        scale=latent_scale(config, size + latent.rope_dim),
    )


def deepseek_v2(config: HfConfig) -> ModelSpec:
    """Softmax scores; experts in groups only where the config says so."""
    if config.flag("mlp_bias", default=False):
        raise config.error("has mlp_bias = True", "import only models without these biases")
    moe = Moe(
        *_deepseek_experts(config),
        normalizes=config.flag("norm_topk_prob", default=False),
        scale=config.number("routed_scaling_factor", 1.0),
    )
    if config.get("topk_method") == "group_limited_greedy":
        groups = config.whole("n_group", 1), config.whole("topk_group", 1)
        moe = replace(moe, num_groups=groups[0], groups_per_token=groups[1])
    return _deepseek(config, _latent_attention(config), moe, num_shared=2, num_dense=0)


def deepseek_v3(config: HfConfig) -> ModelSpec:
    moe = _sigmoid_experts(config, scale=2.5, groups=(8, 4))
    return _deepseek(config, _latent_attention(config), moe, num_shared=1, num_dense=3)


def glm4_moe(config: HfConfig) -> ModelSpec:
    """The experts of DeepSeek V3 under plain heads, of which half turns."""
    heads = heads_of(config, kv_heads=8)
    attention = Attention(
        *heads,
        qkv_bias=config.flag("attention_bias", default=False),
        qk_norm="head" if config.flag("use_qk_norm", default=False) else None,
        rope=rotary(config, dim=rotated_part(config, heads[2], 0.5)),
    )
    moe = _sigmoid_experts(config, scale=1.0, groups=(1, 1))
    return _deepseek(config, attention, moe, num_shared=1, num_dense=1, eps=1e-5)


def _sigmoid_experts(config: HfConfig, *, scale: float, groups: tuple[int, int]) -> Moe:
    if config.get("num_nextn_predict_layers"):
        config.notes.append("num_nextn_predict_layers (the extra prediction layer is left out)")
    return Moe(
        *_deepseek_experts(config),
        scoring="sigmoid",
        normalizes=config.flag("norm_topk_prob", default=True),
        scale=config.number("routed_scaling_factor", scale),
        num_groups=config.whole("n_group", groups[0]),
        groups_per_token=config.whole("topk_group", groups[1]),
        group_score="top2",
        has_choice_bias=True,
    )


def _deepseek_experts(config: HfConfig) -> tuple[int, int, Mlp]:
    expert = Mlp(config.whole("moe_intermediate_size"), activation=activation(config))
    return config.whole("n_routed_experts"), config.whole("num_experts_per_tok"), expert


def _deepseek(
    config: HfConfig,
    attention: Attention,
    moe: Moe,
    *,
    num_shared: int,
    num_dense: int,
    eps: float = 1e-6,
) -> ModelSpec:
    """Dense layers first, then shared and routed experts; a null means no shared expert."""
    width = moe.expert.width
    if "n_shared_experts" in config.values:
        num_shared = config.layer("n_shared_experts", 0)
    config.used.add("n_shared_experts")
    if num_shared:
        moe = replace(moe, shared=replace(moe.expert, width=width * num_shared))
    dense = config.layer("first_k_dense_replace", num_dense)
    step = config.whole("moe_layer_freq", 1)
    mlp = Mlp(config.whole("intermediate_size"), activation=activation(config))
    layers = range(config.whole("num_hidden_layers"))
    mlps = [moe if i >= dense and i % step == 0 else mlp for i in layers]
    return decoder(config, [Block(attention, m) for m in mlps], eps=eps)


def llama4_text(config: HfConfig) -> ModelSpec:
    """Experts in every `interleave_moe_layer_step`-th layer; some layers have no positions.

    Layers with positions see chunks of a sequence, which a window is not: they count as seeing all.
    """
    if config.get("attention_chunk_size"):
        config.notes.append("attention_chunk_size (every layer is taken to see all positions)")
    if config.flag("use_qk_norm", default=True):
        config.notes.append("use_qk_norm (a norm without weights is left out)")
    config.used |= {"attn_temperature_tuning", "attn_scale", "floor_scale", "layer_types"}
    layers = range(config.whole("num_hidden_layers"))
    every = config.whole("no_rope_layer_interval", 4)
    turns = config.indices("no_rope_layers") or [(i + 1) % every for i in layers]
    step = config.whole("interleave_moe_layer_step", 1)
    routed = config.indices("moe_layers") or layers[step - 1 :: step]
    expert = Mlp(config.whole("intermediate_size"), activation=activation(config))
    dense = replace(expert, width=config.whole("intermediate_size_mlp", 16384))
    experts = config.whole("num_local_experts", 16), config.whole("num_experts_per_tok", 1)
    moe = Moe(*experts, expert, shared=expert, scoring="sigmoid", normalizes=False)
    biased = config.flag("attention_bias", default=False)
    heads = heads_of(config, head_dim=128, kv_heads=8)
    attention = Attention(*heads, qkv_bias=biased, out_bias=biased, rope=rotary(config, theta=5e5))
    blocks = [
        Block(attention if turn else replace(attention, rope=None), moe if i in routed else dense)
        for i, turn in zip(layers, turns, strict=False)
    ]
    if len(blocks) < len(layers):
        raise config.error("has fewer no_rope_layers than layers", "give each layer a 0 or a 1")
    return decoder(config, blocks, eps=1e-5)


def gpt_oss(config: HfConfig) -> ModelSpec:
    """Sinks, biases everywhere, local and global layers in turn."""
    biased = config.flag("attention_bias", default=True)
    heads = heads_of(config, head_dim=64, kv_heads=8)
    config.used |= {"experts_per_token"}  # the same as num_experts_per_tok
    width, limit = config.whole("intermediate_size"), config.number("swiglu_limit", 7.0)
    expert = Mlp(width, has_bias=True, activation="clipped_swiglu", limit=limit)
    experts = config.whole("num_local_experts"), config.whole("num_experts_per_tok", 4)
    moe = Moe(*experts, expert, has_router_bias=True)
    windows = windows_of(config, lambda i: i % 2 == 0, config.whole("sliding_window", 128))
    every = Attention(
        *heads,
        qkv_bias=biased,
        out_bias=biased,
        has_sinks=True,
        rope=rotary(config, theta=150_000.0),
    )
    blocks = [Block(replace(every, window=w), moe) for w in windows]
    return decoder(config, blocks, eps=1e-5)

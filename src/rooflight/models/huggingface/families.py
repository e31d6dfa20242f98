"""One function a family of dense Hugging Face models: which keys make which sizes.

In: an `HfConfig`. Out: a `ModelSpec` without its name.
"""

from dataclasses import replace

from rooflight.models.huggingface.config import HfConfig
from rooflight.models.huggingface.numbers import activation, rotary, rotated_part
from rooflight.models.huggingface.parts import (
    decoder,
    heads_of,
    qwen3_attention,
    qwen_windows,
    windows_of,
)
from rooflight.models.spec import (
    Attention,
    Block,
    Mlp,
    ModelSpec,
    Norm,
    NormPlace,
    Repeat,
    Rope,
    repeats,
)

SANDWICH: tuple[NormPlace, ...] = ("attention_in", "attention_out", "mlp_in", "mlp_out")
AFTER: tuple[NormPlace, ...] = ("attention_out", "mlp_out")


def llama(config: HfConfig) -> ModelSpec:
    biased = config.flag("attention_bias", default=False)
    rope = rotary(config)
    attention = Attention(*heads_of(config), qkv_bias=biased, out_bias=biased, rope=rope)
    has_bias = config.flag("mlp_bias", default=False)
    mlp = Mlp(config.whole("intermediate_size"), has_bias=has_bias, activation=activation(config))
    return decoder(config, [Block(attention, mlp)] * config.whole("num_hidden_layers"))


def mistral(config: HfConfig) -> ModelSpec:
    """Every layer has the window; a null says that none has."""
    window = config.maybe_whole("sliding_window") if "sliding_window" in config.values else 4096
    config.used.add("sliding_window")
    mlp = Mlp(config.whole("intermediate_size"), activation=activation(config))
    windows = windows_of(config, lambda _: True, window)
    heads, rope = heads_of(config, kv_heads=8), rotary(config)
    return decoder(config, [Block(Attention(*heads, window=w, rope=rope), mlp) for w in windows])


def qwen2(config: HfConfig) -> ModelSpec:
    heads, rope = heads_of(config, kv_heads=32), rotary(config)
    mlp = Mlp(config.whole("intermediate_size"), activation=activation(config))
    windows = qwen_windows(config)
    blocks = [Block(Attention(*heads, window=w, qkv_bias=True, rope=rope), mlp) for w in windows]
    return decoder(config, blocks)


def qwen3(config: HfConfig) -> ModelSpec:
    mlp = Mlp(config.whole("intermediate_size"), activation=activation(config))
    blocks = [
        Block(qwen3_attention(config, window, kv_heads=32, head_dim=128), mlp)
        for window in qwen_windows(config)
    ]
    return decoder(config, blocks)


def gemma(config: HfConfig) -> ModelSpec:
    biased = config.flag("attention_bias", default=False)
    heads, rope = heads_of(config, head_dim=256), rotary(config)
    attention = Attention(*heads, qkv_bias=biased, out_bias=biased, rope=rope)
    block = Block(attention, _gemma_mlp(config))
    blocks = [block] * config.whole("num_hidden_layers")
    return decoder(config, blocks, tied=True, adds_one=True, embedding_scale=_gemma_scale(config))


def _gemma_mlp(config: HfConfig, width: int | None = None) -> Mlp:
    """Gemma's first config named the activation in a key that its code then ignored."""
    config.used.add("hidden_act")
    activated = activation(config, "hidden_activation", "gelu_pytorch_tanh")
    return Mlp(config.whole("intermediate_size", width), activation=activated)


def _gemma_scale(config: HfConfig) -> float:
    """What is looked up is scaled to the size of what the layers add."""
    return config.whole("hidden_size", 2304) ** 0.5


def _query_scale(config: HfConfig) -> float:
    return config.number("query_pre_attn_scalar", 256.0) ** -0.5


def gemma2(config: HfConfig) -> ModelSpec:
    """Local and global layers in turn, norms before and after both halves."""
    biased = config.flag("attention_bias", default=False)
    heads, mlp = heads_of(config, head_dim=256, kv_heads=4), _gemma_mlp(config)
    windows = windows_of(config, lambda i: i % 2 == 0, config.whole("sliding_window", 4096))
    every = Attention(
        *heads,
        qkv_bias=biased,
        out_bias=biased,
        rope=rotary(config),
        scale=_query_scale(config),
        softcap=_softcap(config, "attn_logit_softcapping", 50.0),
    )
    blocks = [Block(replace(every, window=w), mlp, SANDWICH) for w in windows]
    return _gemma_decoder(config, blocks, vocab=256_000, softcap=30.0)


def _softcap(config: HfConfig, key: str, default: float | None) -> float | None:
    """A null says that there is none; a missing key takes the family's."""
    return config.maybe_number(key) if key in config.values else default


def _gemma_decoder(
    config: HfConfig, blocks: list[Block], *, vocab: int, softcap: float | None
) -> ModelSpec:
    return decoder(
        config,
        blocks,
        tied=True,
        vocab=vocab,
        adds_one=True,
        embedding_scale=_gemma_scale(config),
        softcap=_softcap(config, "final_logit_softcapping", softcap),
    )


def gemma3_text(config: HfConfig) -> ModelSpec:
    """Five local layers to a global one; the published files leave out most of the sizes."""
    biased = config.flag("attention_bias", default=False)
    heads = heads_of(config, head_dim=256, heads=8, kv_heads=4)
    mlp = _gemma_mlp(config, 9216)
    period = config.whole("sliding_window_pattern", config.whole("_sliding_window_pattern", 6))
    windows = windows_of(
        config, lambda i: (i + 1) % period > 0, config.whole("sliding_window", 4096)
    )
    every = Attention(
        *heads,
        qkv_bias=biased,
        out_bias=biased,
        qk_norm="head",
        scale=_query_scale(config),
        softcap=_softcap(config, "attn_logit_softcapping", None),
        rope=rotary(config, theta=1e6, kind="full_attention"),
    )
    local = replace(every, rope=_gemma3_local(config))
    blocks = [Block(replace(local, window=w) if w else every, mlp, SANDWICH) for w in windows]
    return _gemma_decoder(config, blocks, vocab=262_208, softcap=None)


def _gemma3_local(config: HfConfig) -> Rope:
    """Layers with a window turn faster, and are never stretched."""
    if config.get("rope_parameters") is not None:
        return rotary(config, kind="sliding_attention")
    return Rope(config.number("rope_local_base_freq", 10_000.0))


def olmo2(config: HfConfig) -> ModelSpec:
    """Norms only after each half, and over all queries and all keys."""
    biased = config.flag("attention_bias", default=False)
    heads = heads_of(config)
    attention = Attention(
        *heads, qkv_bias=biased, out_bias=biased, qk_norm="all", rope=rotary(config)
    )
    mlp = Mlp(config.whole("intermediate_size"), activation=activation(config))
    blocks = [Block(attention, mlp, AFTER)] * config.whole("num_hidden_layers")
    return decoder(config, blocks, eps=1e-5)


def phi3(config: HfConfig) -> ModelSpec:
    """Phi-3 and Phi-4; queries, keys and values in one matrix, which counts the same."""
    heads, window = heads_of(config), config.maybe_whole("sliding_window")
    rope = rotary(config, dim=rotated_part(config, heads[2]))
    mlp = Mlp(config.whole("intermediate_size"), activation=activation(config))
    block = Block(Attention(*heads, window=window, rope=rope), mlp)
    return decoder(config, [block] * config.whole("num_hidden_layers"), eps=1e-5)


def glm4(config: HfConfig) -> ModelSpec:
    """Norms before and after both halves; half of a head turns, neighbours together."""
    heads = heads_of(config, head_dim=128, kv_heads=2)
    attention = Attention(
        *heads,
        qkv_bias=config.flag("attention_bias", default=True),
        rope=rotary(config, dim=rotated_part(config, heads[2], 0.5), interleaved=True),
    )
    mlp = Mlp(config.whole("intermediate_size"), activation=activation(config))
    blocks = [Block(attention, mlp, SANDWICH)] * config.whole("num_hidden_layers")
    return decoder(config, blocks, eps=1.5625e-7)


def granite(config: HfConfig) -> ModelSpec:
    """Llama with factors on what is looked up, scored, added and told."""
    model = llama(config)
    scale = config.number("attention_multiplier", 1.0)
    (run,) = model.layers
    block = replace(run.blocks[0], attention=replace(run.blocks[0].attention, scale=scale))
    return replace(
        model,
        layers=(Repeat((block,), run.times),),
        embedding_scale=config.number("embedding_multiplier", 1.0),
        residual_scale=config.number("residual_multiplier", 1.0),
        logit_scale=1 / (config.number("logits_scaling", 1.0) or 1.0),
    )


def gpt2(config: HfConfig) -> ModelSpec:
    """GPT-2 and 3: learned positions, layer norms, plain feed-forward layers, biases."""
    d_model, heads = config.whole("n_embd"), config.whole("n_head")
    size = d_model // heads
    attention = Attention(heads, heads, size, qkv_bias=True, out_bias=True, rope=None)
    activated = activation(config, "activation_function", "gelu_new")
    width = config.whole("n_inner", 4 * d_model)
    mlp = Mlp(width, is_gated=False, has_bias=True, activation=activated)
    return ModelSpec(
        name="",
        title="",
        d_model=d_model,
        vocab=config.whole("vocab_size"),
        layers=repeats([Block(attention, mlp)] * config.whole("n_layer")),
        norm=Norm("layer", has_bias=True, eps=config.number("layer_norm_epsilon", 1e-5)),
        is_tied=config.flag("tie_word_embeddings", default=True),
        num_positions=config.whole("n_positions", 1024),
        max_seq=config.whole("n_positions", 1024),
        dtype=config.dtype(),
    )


def mpt(config: HfConfig) -> ModelSpec:
    """ALiBi in place of positions; no bias anywhere."""
    d_model, heads = config.whole("d_model"), config.whole("n_heads")
    if config.get("attn_config") is not None:
        _check_mpt_attention(config.inner("attn_config"))
    config.used |= {"learned_pos_emb", "no_bias", "norm_type"}  # one value each in transformers
    if config.get("no_bias") is False or config.get("norm_type") not in (
        None,
        "low_precision_layernorm",
    ):
        raise config.error("has biases or another norm", "import only models without biases")
    width = config.whole("expansion_ratio", 4) * d_model
    mlp = Mlp(width, is_gated=False, activation="gelu")
    attention = Attention(heads, heads, d_model // heads, rope=None, has_alibi=True)
    return ModelSpec(
        name="",
        title="",
        d_model=d_model,
        vocab=config.whole("vocab_size"),
        layers=repeats([Block(attention, mlp)] * config.whole("n_layers")),
        norm=Norm("layer"),
        is_tied=config.flag("tie_word_embeddings", default=True),
        max_seq=config.maybe_whole("max_seq_len"),
        dtype=config.dtype(),
    )


def _check_mpt_attention(config: HfConfig) -> None:
    if config.get("attn_type") not in (None, "multihead_attention") or config.get("qk_ln"):
        raise config.error("is not plain multi-head attention", "import only such models")

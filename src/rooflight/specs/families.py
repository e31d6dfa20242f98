"""One function a family of dense Hugging Face models: which keys make which sizes.

In: an `HfConfig`. Out: a `ModelSpec` without its name.
"""

from rooflight.specs.hf_config import HfConfig
from rooflight.specs.hf_parts import decoder, heads_of, qwen3_attention, qwen_windows, windows_of
from rooflight.specs.model import Attention, Block, Mlp, ModelSpec, Norm, NormPlace, repeats

SANDWICH: tuple[NormPlace, ...] = ("attention_in", "attention_out", "mlp_in", "mlp_out")
AFTER: tuple[NormPlace, ...] = ("attention_out", "mlp_out")


def llama(config: HfConfig) -> ModelSpec:
    biased = config.flag("attention_bias", default=False)
    attention = Attention(*heads_of(config), qkv_bias=biased, out_bias=biased)
    mlp = Mlp(config.whole("intermediate_size"), has_bias=config.flag("mlp_bias", default=False))
    return decoder(config, [Block(attention, mlp)] * config.whole("num_hidden_layers"))


def mistral(config: HfConfig) -> ModelSpec:
    """Every layer has the window; a null says that none has."""
    window = config.maybe_whole("sliding_window") if "sliding_window" in config.values else 4096
    config.used.add("sliding_window")
    mlp = Mlp(config.whole("intermediate_size"))
    windows = windows_of(config, lambda _: True, window)
    heads = heads_of(config, kv_heads=8)
    return decoder(config, [Block(Attention(*heads, window=w), mlp) for w in windows])


def qwen2(config: HfConfig) -> ModelSpec:
    heads, mlp = heads_of(config, kv_heads=32), Mlp(config.whole("intermediate_size"))
    windows = qwen_windows(config)
    blocks = [Block(Attention(*heads, window=w, qkv_bias=True), mlp) for w in windows]
    return decoder(config, blocks)


def qwen3(config: HfConfig) -> ModelSpec:
    mlp = Mlp(config.whole("intermediate_size"))
    blocks = [
        Block(qwen3_attention(config, window, kv_heads=32, head_dim=128), mlp)
        for window in qwen_windows(config)
    ]
    return decoder(config, blocks)


def gemma(config: HfConfig) -> ModelSpec:
    biased = config.flag("attention_bias", default=False)
    attention = Attention(*heads_of(config, head_dim=256), qkv_bias=biased, out_bias=biased)
    block = Block(attention, Mlp(config.whole("intermediate_size")))
    return decoder(config, [block] * config.whole("num_hidden_layers"), tied=True)


def gemma2(config: HfConfig) -> ModelSpec:
    """Local and global layers in turn, norms before and after both halves."""
    biased = config.flag("attention_bias", default=False)
    heads = heads_of(config, head_dim=256, kv_heads=4)
    mlp = Mlp(config.whole("intermediate_size"))
    windows = windows_of(config, lambda i: i % 2 == 0, config.whole("sliding_window", 4096))
    blocks = [
        Block(Attention(*heads, window=w, qkv_bias=biased, out_bias=biased), mlp, SANDWICH)
        for w in windows
    ]
    return decoder(config, blocks, tied=True, vocab=256_000)


def gemma3_text(config: HfConfig) -> ModelSpec:
    """Five local layers to a global one; the published files leave out most of the sizes."""
    biased = config.flag("attention_bias", default=False)
    heads = heads_of(config, head_dim=256, heads=8, kv_heads=4)
    mlp = Mlp(config.whole("intermediate_size", 9216))
    period = config.whole("sliding_window_pattern", 6)
    windows = windows_of(
        config, lambda i: (i + 1) % period > 0, config.whole("sliding_window", 4096)
    )
    blocks = [
        Block(
            Attention(*heads, window=w, qkv_bias=biased, out_bias=biased, qk_norm="head"),
            mlp,
            SANDWICH,
        )
        for w in windows
    ]
    return decoder(config, blocks, tied=True, vocab=262_208)


def olmo2(config: HfConfig) -> ModelSpec:
    """Norms only after each half, and over all queries and all keys."""
    biased = config.flag("attention_bias", default=False)
    heads = heads_of(config)
    attention = Attention(*heads, qkv_bias=biased, out_bias=biased, qk_norm="all")
    block = Block(attention, Mlp(config.whole("intermediate_size")), AFTER)
    return decoder(config, [block] * config.whole("num_hidden_layers"))


def phi3(config: HfConfig) -> ModelSpec:
    """Phi-3 and Phi-4; queries, keys and values in one matrix, which counts the same."""
    attention = Attention(*heads_of(config), window=config.maybe_whole("sliding_window"))
    block = Block(attention, Mlp(config.whole("intermediate_size")))
    return decoder(config, [block] * config.whole("num_hidden_layers"))


def gpt2(config: HfConfig) -> ModelSpec:
    """GPT-2 and 3: learned positions, layer norms, plain feed-forward layers, biases."""
    d_model, heads = config.whole("n_embd"), config.whole("n_head")
    attention = Attention(heads, heads, d_model // heads, qkv_bias=True, out_bias=True)
    mlp = Mlp(config.whole("n_inner", 4 * d_model), is_gated=False, has_bias=True)
    return ModelSpec(
        name="",
        title="",
        d_model=d_model,
        vocab=config.whole("vocab_size"),
        layers=repeats([Block(attention, mlp)] * config.whole("n_layer")),
        norm=Norm("layer", has_bias=True),
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
    mlp = Mlp(config.whole("expansion_ratio", 4) * d_model, is_gated=False)
    return ModelSpec(
        name="",
        title="",
        d_model=d_model,
        vocab=config.whole("vocab_size"),
        layers=repeats(
            [Block(Attention(heads, heads, d_model // heads), mlp)] * config.whole("n_layers")
        ),
        norm=Norm("layer"),
        is_tied=config.flag("tie_word_embeddings", default=True),
        max_seq=config.maybe_whole("max_seq_len"),
        dtype=config.dtype(),
    )


def _check_mpt_attention(config: HfConfig) -> None:
    if config.get("attn_type") not in (None, "multihead_attention") or config.get("qk_ln"):
        raise config.error("is not plain multi-head attention", "import only such models")

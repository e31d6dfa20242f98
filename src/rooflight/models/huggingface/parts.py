"""What the families of Hugging Face models share: heads, windows, and the frame around layers.

In: an `HfConfig`. Out: parts of a `ModelSpec`. A default is that of the family's config class in
`transformers`, because a config.json may leave out what equals it.
"""

from collections.abc import Callable, Sequence

from rooflight.models.huggingface.config import HfConfig
from rooflight.models.huggingface.numbers import rms_norm, rotary
from rooflight.models.spec import Attention, Block, ModelSpec, repeats


def decoder(
    config: HfConfig,
    blocks: Sequence[Block],
    *,
    tied: bool = False,
    vocab: int | None = None,
    eps: float = 1e-6,
    adds_one: bool = False,
    embedding_scale: float | None = None,
    softcap: float | None = None,
) -> ModelSpec:
    return ModelSpec(
        name="",
        title="",
        d_model=config.whole("hidden_size"),
        vocab=config.whole("vocab_size", vocab),
        layers=repeats(blocks),
        norm=rms_norm(config, eps=eps, adds_one=adds_one),
        embedding_scale=embedding_scale,
        softcap=softcap,
        is_tied=config.flag("tie_word_embeddings", default=tied),
        max_seq=config.maybe_whole("max_position_embeddings"),
        dtype=config.dtype(),
    )


def heads_of(
    config: HfConfig,
    *,
    head_dim: int | None = None,
    heads: int | None = None,
    kv_heads: int | None = None,
) -> tuple[int, int, int]:
    """N, K, H; one kv head for each query head unless said otherwise."""
    num_heads = config.whole("num_attention_heads", heads)
    size = config.whole("head_dim", head_dim or config.whole("hidden_size") // num_heads)
    return num_heads, config.whole("num_key_value_heads", kv_heads or num_heads), size


def windows_of(
    config: HfConfig, default: Callable[[int], bool], window: int | None
) -> list[int | None]:
    """The window of each layer: by `layer_types`, else by the family's rule."""
    num_layers = config.whole("num_hidden_layers")
    kinds = config.strings("layer_types")
    if not kinds:
        return [window if default(i) else None for i in range(num_layers)]
    unknown = set(kinds) - {"sliding_attention", "full_attention"}
    if unknown or len(kinds) != num_layers:
        raise config.error(
            f"has {len(kinds)} layer_types for {num_layers} layers, of kinds {sorted(set(kinds))}",
            "give each layer sliding_attention or full_attention",
        )
    return [window if kind == "sliding_attention" else None for kind in kinds]


def qwen_windows(config: HfConfig, first: int | None = None) -> list[int | None]:
    """The layers from `first` or `max_window_layers` on slide, if any does."""
    first = config.layer("max_window_layers", 28) if first is None else first
    config.used.add("sliding_window")  # anything, where no layer slides
    slides = config.flag("use_sliding_window", default=False)
    window = config.whole("sliding_window", 4096) if slides else None
    return windows_of(config, lambda i: i >= first, window)


def qwen3_attention(
    config: HfConfig, window: int | None, *, kv_heads: int, head_dim: int | None
) -> Attention:
    biased = config.flag("attention_bias", default=False)
    heads = heads_of(config, head_dim=head_dim, kv_heads=kv_heads)
    return Attention(
        *heads, window=window, qkv_bias=biased, out_bias=biased, qk_norm="head", rope=rotary(config)
    )

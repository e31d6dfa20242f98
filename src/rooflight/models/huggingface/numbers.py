"""What a Hugging Face config says of numbers rather than sizes: rotary positions, norms, scales.

In: an `HfConfig`. Out: parts of a `ModelSpec` that change no count. Two spellings of rotary
positions are in use: `rope_theta` beside `rope_scaling`, and all of it in `rope_parameters`, which
may hold one entry for each kind of layer.
"""

import math
from collections.abc import Mapping
from typing import cast

from rooflight.models.huggingface.config import HfConfig
from rooflight.models.spec import Activation, Norm, Rope, RopeScaling

_ACTIVATIONS: Mapping[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}


def rms_norm(config: HfConfig, *, eps: float = 1e-6, adds_one: bool = False) -> Norm:
    return Norm(eps=config.number("rms_norm_eps", eps), adds_one=adds_one)


def activation(config: HfConfig, key: str = "hidden_act", default: str = "silu") -> Activation:
    """The function between the matrices of a feed-forward layer."""
    name = config.get(key)
    name = default if name is None else name
    if not isinstance(name, str) or name not in _ACTIVATIONS:
        raise config.error(f"has {key} = {name!r}", f"write one of {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[name]


def rotary(
    config: HfConfig,
    *,
    theta: float = 10_000.0,
    kind: str = "",
    dim: int | None = None,
    interleaved: bool = False,
) -> Rope:
    """Rotary positions of the layers of a kind, or of all where a config makes no difference."""
    values = _parameters(config, kind)
    base = values.number("rope_theta", config.number("rope_theta", theta))
    return Rope(base, dim, interleaved, _scaling(config, values))


def rotated_part(config: HfConfig, head_dim: int, share: float = 1.0) -> int | None:
    """The elements of a head that turn; None is all of them."""
    key = "partial_rotary_factor"
    part = int(head_dim * _parameters(config, "").number(key, config.number(key, share)))
    return part if part < head_dim else None


def _parameters(config: HfConfig, kind: str) -> HfConfig:
    """The keys of rotary positions, from wherever they are written."""
    given = config.get("rope_parameters")
    old = config.get("rope_scaling")
    held = [cast(Mapping[str, object], x) for x in (given, old) if isinstance(x, dict)]
    values: Mapping[str, object] = held[0] if held else {}
    if isinstance(values.get(kind), dict):
        values = cast(Mapping[str, object], values[kind])
    return HfConfig(values, f"the rotary positions of {config.where}")


def _scaling(config: HfConfig, values: HfConfig) -> RopeScaling | None:
    kind = values.get("rope_type") or values.get("type") or "default"
    if kind == "default":
        return None
    factor = values.number("factor", 1.0)
    first = values.maybe_whole("original_max_position_embeddings")
    first = first or config.maybe_whole("original_max_position_embeddings")
    first = first or config.maybe_whole("max_position_embeddings") or 8192
    if kind in ("longrope", "su") or values.get("short_factor") is not None:
        return _longrope(config, values, first)
    if kind == "linear":
        return RopeScaling("linear", factor, first)
    if kind == "llama3":
        low, high = values.number("low_freq_factor", 1.0), values.number("high_freq_factor", 4.0)
        return RopeScaling("llama3", factor, first, low=low, high=high)
    if kind == "yarn":
        return RopeScaling(
            "yarn",
            factor,
            first,
            beta_fast=values.number("beta_fast", 32.0),
            beta_slow=values.number("beta_slow", 1.0),
            attention_factor=_attention_factor(values, factor),
            truncates=values.flag("truncate", default=True),
        )
    config.notes.append(f"rotary positions of kind {kind} (only planned, as if not stretched)")
    return RopeScaling("unknown", factor, first)


def _longrope(config: HfConfig, values: HfConfig, first: int) -> RopeScaling:
    """A stretch of its own for each pair (arXiv 2402.13753), the same for all short sequences."""
    factors = values.numbers("short_factor")
    longest = config.maybe_whole("max_position_embeddings") or first
    factor = values.number("factor", longest / first)
    raised = math.sqrt(1 + math.log(factor) / math.log(first)) if factor > 1 < first else 1.0
    if values.get("attention_factor") is not None:
        raised = values.number("attention_factor", 1.0)
    return RopeScaling("longrope", factor, first, attention_factor=raised, factors=factors)


def _attention_factor(values: HfConfig, factor: float) -> float:
    """Stated, or the ratio of two stretches, or one stretch (arXiv 2309.00071, section 3.4)."""
    if values.get("attention_factor") is not None:
        return values.number("attention_factor", 1.0)
    one, other = values.number("mscale", 0.0), values.number("mscale_all_dim", 0.0)
    if one and other:
        return _stretch(factor, one) / _stretch(factor, other)
    return _stretch(factor, 1.0)


def _stretch(factor: float, scale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0


def latent_scale(config: HfConfig, head_dim: int) -> float:
    """Of the scores of latent attention; stretched positions raise it, for all dims alike."""
    values = _parameters(config, "")
    raised = values.number("mscale_all_dim", 0.0)
    stretch = _stretch(values.number("factor", 1.0), raised) if raised else 1.0
    return head_dim**-0.5 * stretch**2

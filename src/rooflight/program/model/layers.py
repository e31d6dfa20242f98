"""What stands between the matmuls of a layer: norms, rotary positions, activations.

Local in every layout but one: a norm over a split D sums one number per token.
"""

import math

import jax
import jax.numpy as jnp
from jax import lax

from rooflight.models.spec import Mlp, Norm, Rope, RopeScaling

_CLIPPED_SLOPE = 1.702  # of the gate's sigmoid in gpt-oss


def normalize(x: jax.Array, norm: Norm, *, num_dims: int = 1) -> jax.Array:
    """Scales the last dims to mean square one, layer norms around their mean, in fp32."""
    dims = tuple(range(-num_dims, 0))
    wide = x.astype(jnp.float32)
    if norm.kind == "layer":
        wide = wide - wide.mean(dims, keepdims=True)
    return wide * lax.rsqrt(jnp.square(wide).mean(dims, keepdims=True) + norm.eps)


def rotary_table(
    rope: Rope, head_dim: int, positions: int | jax.Array
) -> tuple[jax.Array, jax.Array]:
    """cos and sin [..., rotated part / 2] of positions [T] or [B,T]; a number is T from 0 on."""
    turns, stretch = frequencies(rope, head_dim)
    at = jnp.arange(positions) if isinstance(positions, int) else positions
    angles = at.astype(jnp.float32)[..., None] * jnp.asarray(turns)
    return jnp.cos(angles) * stretch, jnp.sin(angles) * stretch


def frequencies(rope: Rope, head_dim: int) -> tuple[list[float], float]:
    """Radians a position of each pair, and the factor on what is rotated."""
    dim = rope.dim or head_dim
    plain = [rope.theta ** (-i / dim) for i in range(0, dim, 2)]
    scaling = rope.scaling
    if scaling is None:
        return plain, 1.0
    if scaling.kind == "linear":
        return [f / scaling.factor for f in plain], 1.0
    if scaling.kind == "llama3":
        return [_llama3(f, scaling) for f in plain], 1.0
    if scaling.kind == "longrope":
        pairs = zip(plain, scaling.factors, strict=True)
        return [f / stretch for f, stretch in pairs], scaling.attention_factor
    return _yarn(plain, rope, scaling, dim), scaling.attention_factor


def _llama3(frequency: float, scaling: RopeScaling) -> float:
    """Slow pairs are stretched by the factor, fast ones not, those between in part."""
    turns = scaling.original_seq * frequency / (2 * math.pi)
    part = (turns - scaling.low) / (scaling.high - scaling.low)
    kept = min(1.0, max(0.0, part))
    return frequency * (kept + (1 - kept) / scaling.factor)


def _yarn(plain: list[float], rope: Rope, scaling: RopeScaling, dim: int) -> list[float]:
    """The same idea, with a ramp over the index of a pair (arXiv 2309.00071, section 3.2)."""

    def index(turns: float) -> float:
        length = scaling.original_seq / (turns * 2 * math.pi)
        return dim * math.log(length) / (2 * math.log(rope.theta))

    low, high = index(scaling.beta_fast), index(scaling.beta_slow)
    if scaling.truncates:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    width = max(high - low, 1e-3)
    stretched = [min(1.0, max(0.0, (i - low) / width)) for i in range(len(plain))]
    return [f * (1 - s + s / scaling.factor) for f, s in zip(plain, stretched, strict=True)]


def rotate(x: jax.Array, table: tuple[jax.Array, jax.Array], rope: Rope) -> jax.Array:
    """Turns pairs of the last dim of x[B,T,...,H] by the angle of their position."""
    extra = (1,) * (x.ndim - 3)
    cos, sin = (t.reshape(*t.shape[:-1], *extra, t.shape[-1]) for t in table)
    dim = 2 * cos.shape[-1]
    rotated, rest = x[..., :dim].astype(jnp.float32), x[..., dim:]
    if rope.is_interleaved:
        pairs = rotated.reshape(*rotated.shape[:-1], dim // 2, 2)
        one, two = pairs[..., 0], pairs[..., 1]
        rotated = jnp.stack([one * cos - two * sin, two * cos + one * sin], -1).reshape(
            rotated.shape
        )
    else:
        one, two = rotated[..., : dim // 2], rotated[..., dim // 2 :]
        rotated = jnp.concatenate([one * cos - two * sin, two * cos + one * sin], -1)
    rotated = rotated.astype(x.dtype)
    return jnp.concatenate([rotated, rest], -1) if rest.shape[-1] else rotated


def activate(mlp: Mlp, gate: jax.Array | None, up: jax.Array) -> jax.Array:
    """What lies between the matrices of a feed-forward layer."""
    if mlp.activation == "clipped_swiglu":
        assert gate is not None and mlp.limit is not None
        gate, up = jnp.minimum(gate, mlp.limit), jnp.clip(up, -mlp.limit, mlp.limit)
        return (up + 1) * gate * jax.nn.sigmoid(_CLIPPED_SLOPE * gate)
    activated = up if gate is None else gate
    match mlp.activation:
        case "silu":
            activated = jax.nn.silu(activated)
        case "relu":
            activated = jax.nn.relu(activated)
        case _:
            activated = jax.nn.gelu(activated, approximate=mlp.activation == "gelu_tanh")
    return activated if gate is None else activated * up


def softcapped(x: jax.Array, cap: float | None) -> jax.Array:
    """c tanh(x / c): as x where x is small, never beyond the cap."""
    return x if cap is None else cap * jnp.tanh(x / cap)

"""The attention half of a block: grouped queries, or a key-value latent expanded to heads.

    h[B_X,T,D] * W_q[D,K_Y,G,H] -> q[B_X,T,K_Y,G,H]     and k, v
    q, k, v -> attended_heads[B_X,T,K_Y,G,H]            one kernel
    attended_heads[B_X,T,K_Y,G,H] * W_o[K_Y,G,H,D] -> attended[B_X,T,D]{U_Y}

Where positions are split (context parallelism) constraints bring a device all keys of its queries:
gathered along S, or exchanged for heads. The kernel is local in every layout but `cp=Y:ring`, which
takes keys and values as they were written and has them travel. Either way tokens are in zigzag
order, so that a causal mask leaves all devices as much to do.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec

from rooflight.algebra.notation import Axes, Tensor
from rooflight.models.graph.ops import Mask
from rooflight.models.layout.constraints import Path
from rooflight.models.spec import Attention, Latent, Norm, Rope
from rooflight.program.attention.gathered import gathered_attend
from rooflight.program.attention.kernels import attend
from rooflight.program.attention.ring import ring_attend
from rooflight.program.attention.ring_order import zigzag
from rooflight.program.attention.tile import KEPT, How
from rooflight.program.matmuls import Scope
from rooflight.program.model.layers import rotary_table, rotate
from rooflight.program.shardings import map_blocks, spec_of
from rooflight.program.varying import vary

Kernel = Callable[..., jax.Array]


class Heads(NamedTuple):
    """Queries and keys of the tokens at hand, in one part or two, and their values."""

    q: list[jax.Array]
    k: list[jax.Array]
    v: jax.Array
    latent: jax.Array | None = None  # [B,T,R], where keys and values are made from one


Memory = Callable[[Scope, Attention, Heads], jax.Array]  # gives attended_heads


def attention(
    scope: Scope,
    spec: Attention,
    h: jax.Array,
    *,
    norm: Norm,
    kernel: Kernel = attend,
    memory: Memory | None = None,
    positions: jax.Array | None = None,
) -> jax.Array:
    """From h[B,T,D] to attended[B,T,D]; `kernel` has the signature of `attend`.

    A `memory` attends in its place, to more than these tokens; tokens are at `positions` [B,T],
    or else from 0 on.
    """
    if spec.latent:
        heads = _latent(scope, spec, spec.latent, h, norm, positions)
    else:
        heads = _grouped(scope, spec, h, norm, positions)
    mixed = mix(scope, spec, heads, kernel) if memory is None else memory(scope, spec, heads)
    return scope.matmul("attention.out", mixed)


def _grouped(
    scope: Scope, spec: Attention, h: jax.Array, norm: Norm, positions: jax.Array | None
) -> Heads:
    q, k, v = (scope.matmul(f"attention.{name}", h) for name in "qkv")
    if spec.qk_norm:
        q = scope.norm("attention.q_norm", q, norm)
        k = scope.norm("attention.k_norm", k, norm)
    if spec.rope:
        q, k = (_turned(scope, x, spec.rope, spec.head_dim, positions) for x in (q, k))
    return Heads([q], [k], v)


def _turned(
    scope: Scope, x: jax.Array, rope: Rope, head_dim: int, positions: jax.Array | None
) -> jax.Array:
    """x[B,T,...,H] rotated by its positions, which are brought to where it is."""
    if positions is not None:
        at = jax.reshard(positions, PartitionSpec(*jax.typeof(x).sharding.spec[:2]))
    else:
        at = zigzag(jnp.arange(x.shape[1]), scope.constraints.context, dim=0)
    return rotate(x, rotary_table(rope, head_dim, at), rope)


def _latent(
    scope: Scope,
    spec: Attention,
    latent: Latent,
    h: jax.Array,
    norm: Norm,
    positions: jax.Array | None,
) -> Heads:
    """Queries and keys in two parts: without positions, and rotated by them."""
    source = h
    if latent.query_rank:
        source = scope.norm("attention_q_norm.norm", scope.matmul("attention.q_down", h), norm)
    q, q_rope = scope.matmul("attention.q", source), scope.matmul("attention.q_rope", source)
    down, k_rope = scope.matmul("attention.kv_down", h), scope.matmul("attention.k_rope", h)
    kv = scope.norm("attention_kv_norm.norm", down, norm)
    k, v = scope.matmul("attention.k", kv), scope.matmul("attention.v", kv)
    if spec.rope:
        q_rope, k_rope = (
            _turned(scope, x, spec.rope, latent.rope_dim, positions) for x in (q_rope, k_rope)
        )
    return Heads([q, q_rope], [k, k_rope], v, kv)


def mix(scope: Scope, spec: Attention, heads: Heads, kernel: Kernel) -> jax.Array:
    """Scores, softmax and weighted values in one kernel, under the name of what lies between."""
    q, k, v, _ = heads
    scores = [scope.constraint(n) for n in ("attention.scores", "attention.rope_scores")[: len(q)]]
    weighted = scope.constraint("attention.mix")
    taken = [
        *(_Taken(x, c.op, c.operands[0]) for x, c in zip(q, scores, strict=True)),
        *(_Taken(x, c.op, c.operands[1]) for x, c in zip(k, scores, strict=True)),
        _Taken(v, weighted.op, weighted.operands[1]),
    ]
    sinks = scope.vector("attention.Sinks") if spec.has_sinks else None
    positions = taken[0].place.axes_of("T")
    if positions and "cp" in scope.constraints.layout.modes:
        taken = [t.unmoved(positions) for t in taken]
        kernel = partial(_of_own, ring_attend, axes=positions)
    elif positions:
        kernel = partial(_of_own, gathered_attend, axes=positions)
    local = partial(_local, parts=len(q), spec=spec, kernel=kernel)
    if positions or scope.constraints.layout.stages:
        attended = _mapped(scope, local, taken, sinks, weighted.result[0])
    else:
        arrays = [scope.along(t.value, t.path) for t in taken]
        with jax.named_scope("attention.softmax"):
            attended = local(*arrays, sinks=sinks)
    with jax.named_scope("attention.mix"):
        for tensor in weighted.result[1:]:
            # Both gradients read it, each where it was: kept twice, it moves once.
            attended = checkpoint_name(jax.reshard(attended, spec_of(tensor)), KEPT)
    return attended


class _Taken(NamedTuple):
    """An array, and the way to the matmul that takes it."""

    value: jax.Array
    op: str
    path: Path

    @property
    def place(self) -> Tensor:
        return self.path[-1]

    def unmoved(self, positions: Axes) -> "_Taken":
        """The same as far as its own positions are kept: a ring moves keys itself."""
        own = [i for i, t in enumerate(self.path) if positions in (t.axes_of(d) for d in t.dims)]
        return self._replace(path=self.path[: own[-1] + 1])


def _mapped(
    scope: Scope, local: Kernel, taken: list[_Taken], sinks: jax.Array | None, result: Tensor
) -> jax.Array:
    """Each device has its own positions of the queries, and all keys that they may see."""
    every = tuple(dict.fromkeys(a for t in taken for a in t.place.sharded_over))
    missing = [tuple(a for a in every if a not in t.place.sharded_over) for t in taken]
    arrays: list[jax.Array] = []
    for t, reduced in zip(taken, missing, strict=True):
        with jax.named_scope(t.op):
            arrays.append(scope.along(t.value, t.path, reduced))

    heads = None if sinks is None else jax.typeof(sinks).sharding.spec

    def mapped(sinks: jax.Array | None, *arrays: jax.Array) -> jax.Array:
        pairs = zip(arrays, missing, strict=True)
        sinks = None if heads is None else vary(sinks, heads.reduced)
        return local(*(vary(x, axes) for x, axes in pairs), sinks=sinks)

    specs = [spec_of(t.place, reduced=r) for t, r in zip(taken, missing, strict=True)]
    with jax.named_scope("attention.softmax"):
        stages = scope.constraints.layout.stages
        run = map_blocks(mapped, (heads, *specs), spec_of(result), stages=stages)
        return run(sinks, *arrays)


def _local(
    *arrays: jax.Array,
    sinks: jax.Array | None,
    parts: int,
    spec: Attention,
    kernel: Kernel,
) -> jax.Array:
    """The kernel on whole heads: the parts of queries and keys side by side."""
    *both, v = arrays
    q, k = (jnp.concatenate(_aligned(x), -1) for x in (both[:parts], both[parts:]))
    q = jnp.expand_dims(q, 3) if spec.latent else q
    out = kernel(
        q,
        k,
        v,
        mask=Mask(spec.window),
        scale=q.shape[-1] ** -0.5 if spec.scale is None else spec.scale,
        softcap=spec.softcap,
        sinks=sinks,
        q_start=0,
    )
    return jnp.squeeze(out, 3) if spec.latent else out


def _of_own(
    attend: Kernel,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    axes: Axes,
    mask: Mask,
    scale: float,
    softcap: float | None,
    sinks: jax.Array | None,
    q_start: int,
) -> jax.Array:
    """The signature of `attend`; which positions a device has follows from its place on axes."""
    del q_start
    how = How(mask, scale, softcap=softcap)
    return attend(q, k, v, axis=axes, how=how, sinks=sinks)


def _aligned(parts: list[jax.Array]) -> list[jax.Array]:
    """The rotated part of a latent key is shared by all heads."""
    first, *rest = parts
    heads = jnp.zeros_like(first[..., :1])
    return [first, *(x if x.ndim == first.ndim else x[:, :, None] + heads for x in rest)]

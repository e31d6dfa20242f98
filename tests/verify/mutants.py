# pyright: reportUnknownParameterType=false
"""A transformer in plain JAX, sound or with one planted mistake: what the judge must find.

Written as people write them: no module of ours, weights in a dict, jit and constraints. X splits
the batch and stores the weights (FSDP), Y splits heads, hidden units and the vocabulary. The line
of a mistake ends in its name, which is how the tests know the line.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

P = PartitionSpec
Built = tuple[Any, tuple[Any, ...]]
Weights = dict[str, jax.Array]

LAYERS, VOCAB, D, F, N, K, H = 4, 32768, 4096, 16384, 32, 8, 128
BATCH, SEQ = 16, 2048

SHAPES: dict[str, tuple[tuple[int, ...], PartitionSpec]] = {
    "embed": ((VOCAB, D), P("Y", "X")),
    "q": ((LAYERS, D, N, H), P(None, "X", "Y", None)),
    "k": ((LAYERS, D, K, H), P(None, "X", "Y", None)),
    "v": ((LAYERS, D, K, H), P(None, "X", "Y", None)),
    "out": ((LAYERS, N, H, D), P(None, "Y", None, "X")),
    "gate": ((LAYERS, D, F), P(None, "X", "Y")),
    "up": ((LAYERS, D, F), P(None, "X", "Y")),
    "down": ((LAYERS, F, D), P(None, "Y", "X")),
    "head": ((D, VOCAB), P("X", "Y")),
}


def abstract(
    mesh: Mesh, shape: tuple[int, ...], spec: PartitionSpec, dtype: Any = jnp.bfloat16
) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))


def norm(x_BTD: jax.Array) -> jax.Array:
    wide = x_BTD.astype(jnp.float32)
    scale = jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + 1e-6)
    return (wide * scale).astype(x_BTD.dtype)


def train(mesh: Mesh, *, mistake: str = "", microbatches: int = 1) -> Built:
    """One step of training with Adam; the batch may be cut into microbatches."""
    pin = _leave if mistake == "missing constraint" else partial(_pin, mesh)
    shapes = dict(SHAPES)
    moments = {name: spec for name, (_, spec) in shapes.items()}
    if mistake == "unsharded embedding":
        shapes["embed"] = (shapes["embed"][0], P())
    if mistake == "transposed spec":
        shapes["down"] = (shapes["down"][0], P(None, "X", "Y"))
    if mistake == "replicated moment":
        moments["up"] = P(None, None, "Y")
    if mistake == "uneven heads":
        shapes["q"] = ((LAYERS, D, 30, H), P(None, "X", None, None))
        shapes["k"] = ((LAYERS, D, 6, H), P(None, "X", None, None))
        shapes["v"] = ((LAYERS, D, 6, H), P(None, "X", None, None))
        shapes["out"] = ((LAYERS, 30, H, D), P(None, None, None, "X"))
        moments |= {name: shapes[name][1] for name in ("q", "k", "v", "out")}
    heads = None if mistake == "uneven heads" else "Y"
    batch = None if mistake == "whole batch" else "X"

    def attention(h_BTD: jax.Array, w: Weights) -> jax.Array:
        q = jnp.einsum("btd,dnh->btnh", h_BTD, w["q"])
        k = jnp.einsum("btd,dkh->btkh", h_BTD, w["k"])
        v = jnp.einsum("btd,dkh->btkh", h_BTD, w["v"])
        q, k, v = (pin(t, batch, None, heads, None) for t in (q, k, v))
        q = q.reshape(*q.shape[:2], k.shape[2], -1, H)
        s = jnp.einsum("btkgh,bskh->bkgts", q, k)  # uneven heads, missing constraint
        s = pin(s / H**0.5, batch, heads, None, None, None)
        p = jax.nn.softmax(s.astype(jnp.float32), axis=-1).astype(q.dtype)
        o = jnp.einsum("bkgts,bskh->btkgh", p, v)
        o = o.reshape(*o.shape[:2], -1, H)
        return jnp.einsum("btnh,nhd->btd", o, w["out"])

    def mlp(h_BTD: jax.Array, w: Weights) -> jax.Array:
        gate = jnp.einsum("btd,df->btf", h_BTD, w["gate"])
        if mistake == "reshard before an einsum":
            h_BTD = pin(h_BTD, None, "X", None)
        up = jnp.einsum("btd,df->btf", h_BTD, w["up"])  # reshard before an einsum
        hidden = pin(jax.nn.silu(gate) * up, batch, None, "Y")
        return jnp.einsum("btf,fd->btd", hidden, w["down"])  # transposed spec, whole batch

    def layer(x_BTD: jax.Array, w: Weights) -> tuple[jax.Array, None]:
        x_BTD = x_BTD + pin(attention(norm(x_BTD), w), batch, None, None)
        x_BTD = x_BTD + pin(mlp(norm(x_BTD), w), batch, None, None)
        return x_BTD, None

    def loss(params: Weights, tokens: jax.Array) -> jax.Array:
        stacked = {n: t for n, t in params.items() if n not in ("embed", "head")}
        table = pin(params["embed"], "Y", None)
        x = pin(table[tokens[:, :-1]], batch, None, None)  # unsharded embedding
        kept = layer if mistake == "large batch, lost remat" else jax.checkpoint(layer)
        x = jax.lax.scan(kept, x, stacked)[0]  # lost_remat
        logits = jnp.einsum("btd,dv->btv", norm(x), params["head"])
        if mistake == "gathered logits":
            logits = pin(logits, None, None, "Y")  # gathered logits
        else:
            logits = pin(logits, batch, None, "Y")
        wide = logits.astype(jnp.float32)
        picked = jnp.sum(
            wide * jax.nn.one_hot(tokens[:, 1:], wide.shape[-1], dtype=jnp.float32), -1
        )
        return jnp.mean(jax.nn.logsumexp(wide, axis=-1) - picked)

    def gradients(params: Weights, tokens: jax.Array) -> Weights:
        if microbatches == 1:
            return jax.grad(loss)(params, tokens)
        cut = tokens.reshape(microbatches, -1, tokens.shape[1])
        cut = pin(cut, None, "X", None)

        def add(total: Weights, part: jax.Array) -> tuple[Weights, None]:
            return jax.tree.map(jnp.add, total, jax.grad(loss)(params, part)), None

        return jax.lax.scan(add, jax.tree.map(jnp.zeros_like, params), cut)[0]

    step = jax.jit(_adam(gradients), donate_argnums=0)
    state = (
        {n: abstract(mesh, shape, spec) for n, (shape, spec) in shapes.items()},
        {n: abstract(mesh, shapes[n][0], moments[n], jnp.float32) for n in shapes},
        {n: abstract(mesh, shapes[n][0], moments[n], jnp.float32) for n in shapes},
    )
    rows = 2 * BATCH if mistake.startswith("large batch") else BATCH
    return step, (state, abstract(mesh, (rows, SEQ + 1), P("X", None), jnp.int32))


def _adam(gradients: Callable[[Weights, jax.Array], Weights]) -> Callable[..., Any]:
    def step(state: tuple[Weights, Weights, Weights], tokens: jax.Array) -> Any:
        params, mean, var = state
        grads = gradients(params, tokens)
        wide = {n: g.astype(jnp.float32) for n, g in grads.items()}
        mean = {n: 0.9 * m + 0.1 * wide[n] for n, m in mean.items()}  # replicated moment
        var = {n: 0.95 * v + 0.05 * jnp.square(wide[n]) for n, v in var.items()}
        params = {
            n: (w - 1e-3 * mean[n] / (jnp.sqrt(var[n]) + 1e-8)).astype(w.dtype)
            for n, w in params.items()
        }
        return params, mean, var

    return step


def _pin(mesh: Mesh, x: jax.Array, *axes: str | None) -> jax.Array:
    return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P(*axes)))


def _leave(x: jax.Array, *axes: str | None) -> jax.Array:
    del axes
    return x


def decode(mesh: Mesh, *, mistake: str = "") -> Built:
    """One token for every sequence; weights are split over Y alone, or over both without moving."""
    pin = partial(_pin, mesh)
    fsdp = "X" if mistake == "fsdp left on in decode" else None

    def spec(name: str) -> PartitionSpec:
        return P(*(fsdp if axis == "X" else axis for axis in SHAPES[name][1]))

    def layer(x_BD: jax.Array, xs: Any) -> Any:
        w, k_BSKH, v_BSKH = xs
        h = norm(x_BD)
        q = pin(jnp.einsum("bd,dnh->bnh", h, w["q"]), "X", "Y", None)  # fsdp left on in decode
        k = jnp.einsum("bd,dkh->bkh", h, w["k"])
        v = jnp.einsum("bd,dkh->bkh", h, w["v"])
        k_BSKH = jax.lax.dynamic_update_slice_in_dim(k_BSKH, k[:, None], SEQ - 1, axis=1)
        v_BSKH = jax.lax.dynamic_update_slice_in_dim(v_BSKH, v[:, None], SEQ - 1, axis=1)
        keys = k_BSKH
        if mistake == "gather of K over batch":
            keys = pin(keys, None, None, "Y", None)  # gather of K over batch
        q = q.reshape(q.shape[0], K, -1, H)
        s = jnp.einsum("bkgh,bskh->bkgs", q, keys) / H**0.5
        p = jax.nn.softmax(s.astype(jnp.float32), axis=-1).astype(q.dtype)
        o = jnp.einsum("bkgs,bskh->bkgh", p, v_BSKH).reshape(q.shape[0], N, H)
        x_BD = x_BD + pin(jnp.einsum("bnh,nhd->bd", o, w["out"]), "X", None)
        h = norm(x_BD)
        up = jax.nn.silu(h @ w["gate"]) * (h @ w["up"])
        x_BD = x_BD + pin(pin(up, "X", "Y") @ w["down"], "X", None)
        return x_BD, (k_BSKH, v_BSKH)

    def step(params: Weights, cache: Any, tokens: jax.Array) -> Any:
        stacked = {n: t for n, t in params.items() if n not in ("embed", "head")}
        x = pin(params["embed"][tokens], "X", None)
        x, cache = jax.lax.scan(layer, x, (stacked, *cache))
        return pin(norm(x) @ params["head"], "X", "Y"), cache

    params = {n: abstract(mesh, shape, spec(n)) for n, (shape, _) in SHAPES.items()}
    block = abstract(mesh, (LAYERS, BATCH, SEQ, K, H), P(None, "X", None, "Y", None))
    tokens = abstract(mesh, (BATCH,), P("X"), jnp.int32)
    return jax.jit(step, donate_argnums=1), (params, (block, block), tokens)

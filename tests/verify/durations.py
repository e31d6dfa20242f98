# pyright: basic
"""Programs whose compiles are timed: from one matmul to layers written out one by one."""

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec


def _like(mesh, *shape, axes=(), dtype=jnp.bfloat16):
    where = NamedSharding(mesh, PartitionSpec(*axes))
    return jax.ShapeDtypeStruct(shape, dtype, sharding=where)


def _norm(x):
    scale = lax.rsqrt(jnp.square(x.astype(jnp.float32)).mean(-1, keepdims=True) + 1e-5)
    return x * scale.astype(x.dtype)


def matmul(mesh):
    x, w = _like(mesh, 8192, 8192, axes=("X",)), _like(mesh, 8192, 8192, axes=(None, "X"))
    return jax.jit(jnp.matmul), (x, w)


def attention(mesh):
    def loss(q, k, v):
        scores = jnp.einsum("btnh,bsnh->bnts", q, k).astype(jnp.float32) * 0.1
        scores = jnp.where(jnp.tri(scores.shape[-1], dtype=bool), scores, -1e9)
        weights = jax.nn.softmax(scores, -1).astype(q.dtype)
        return jnp.einsum("bnts,bsnh->btnh", weights, v).sum()

    one = _like(mesh, 16, 1024, 16, 128, axes=("X",))
    return jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2))), (one, one, one)


def two_matmuls(mesh):
    def loss(w, x):
        def layer(x, w):
            return jax.nn.gelu(x @ w[0]) @ w[1], None

        return lax.scan(layer, x, w)[0].sum()

    w = (
        _like(mesh, 8, 2048, 8192, axes=(None, "X")),
        _like(mesh, 8, 8192, 2048, axes=(None, None, "X")),
    )
    return jax.jit(jax.grad(loss)), (w, _like(mesh, 4096, 2048, axes=("X",)))


def gated(mesh):
    def loss(w, x):
        def layer(x, w):
            h = _norm(x)
            return x + (jax.nn.silu(h @ w[0]) * (h @ w[1])) @ w[2], None

        return lax.scan(layer, x, w)[0].sum()

    wide = _like(mesh, 8, 2048, 4096, axes=(None, "X"))
    w = (wide, wide, _like(mesh, 8, 4096, 2048, axes=(None, None, "X")))
    return jax.jit(jax.grad(loss)), (w, _like(mesh, 4096, 2048, axes=("X",)))


def unrolled(mesh):
    def loss(ws, x):
        for w in ws:
            x = _norm(x + jax.nn.silu(x @ w[0]) @ w[1])
        return x.sum()

    w = (_like(mesh, 1024, 4096, axes=("X",)), _like(mesh, 4096, 1024, axes=(None, "X")))
    return jax.jit(jax.grad(loss)), ([w] * 4, _like(mesh, 2048, 1024, axes=("X",)))


def head(mesh):
    def loss(w, x, targets):
        logits = (_norm(x) @ w).astype(jnp.float32)
        found = jnp.take_along_axis(logits, targets[:, None], -1)[:, 0]
        return (jax.nn.logsumexp(logits, -1) - found).mean()

    x, w = _like(mesh, 4096, 2048, axes=("X",)), _like(mesh, 2048, 32768, axes=("X",))
    return jax.jit(jax.grad(loss, argnums=(0, 1))), (w, x, _like(mesh, 4096, dtype=jnp.int32))


def optimizer(mesh):
    adam = optax.adamw(1e-3)
    weights = {str(at): _like(mesh, 4096, 256 * at, axes=("X",)) for at in range(1, 9)}

    def update(weights, state, gradients):
        updates, state = adam.update(gradients, state, weights)
        return optax.apply_updates(weights, updates), state

    return jax.jit(update), (weights, jax.eval_shape(adam.init, weights), weights)


def halves(mesh):
    def loss(ws, x):
        for w in ws:
            x = _norm(jnp.split(x, 2, -1)[0] @ w)
        return x.sum()

    ws = [_like(mesh, 1024, 2048, axes=("X",)), _like(mesh, 1024, 4096, axes=("X",))]
    return jax.jit(jax.grad(loss)), (ws, _like(mesh, 4096, 2048, axes=("X",)))

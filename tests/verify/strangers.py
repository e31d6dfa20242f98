# pyright: reportUnknownParameterType=false
"""Programs in the habits of other people: what `rooflight verify --fn` meets.

A vision transformer that is only data parallel, experts by one-hot dispatch, attention that trades
sequence for heads; each builds its own shardings its own way. One has a mistake.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, get_abstract_mesh

P = PartitionSpec
Built = tuple[Any, tuple[Any, ...]]


class Block(NamedTuple):
    """One layer of the vision transformer."""

    qkv: Any
    proj: Any
    fc1: Any
    fc2: Any


def _norm(x: jax.Array) -> jax.Array:
    x32 = x.astype(jnp.float32)
    x32 = x32 - x32.mean(-1, keepdims=True)
    return (x32 * jax.lax.rsqrt((x32 * x32).mean(-1, keepdims=True) + 1e-5)).astype(x.dtype)


def vit() -> Built:
    """Data parallel, twelve layers in a Python loop, SGD; takes the mesh that is set."""
    width, heads, patches = 768, 12, 196
    blocks = [
        Block(
            jax.ShapeDtypeStruct((width, 3 * width), jnp.float32),
            jax.ShapeDtypeStruct((width, width), jnp.float32),
            jax.ShapeDtypeStruct((width, 4 * width), jnp.float32),
            jax.ShapeDtypeStruct((4 * width, width), jnp.float32),
        )
        for _ in range(12)
    ]
    params = {
        "blocks": blocks,
        "patch": jax.ShapeDtypeStruct((16 * 16 * 3, width), jnp.float32),
        "head": jax.ShapeDtypeStruct((width, 1000), jnp.float32),
    }

    def apply(params: Any, images: jax.Array) -> jax.Array:
        low = jax.tree.map(lambda w: w.astype(jnp.bfloat16), params)
        n = images.shape[0]
        x = images.reshape(n, 14, 16, 14, 16, 3).transpose(0, 1, 3, 2, 4, 5)
        x = x.reshape(n, patches, -1).astype(jnp.bfloat16) @ low["patch"]
        for block in low["blocks"]:
            qkv = (_norm(x) @ block.qkv).reshape(n, patches, 3, heads, width // heads)
            q, k, v = qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2]
            a = jax.nn.softmax(jnp.einsum("nqhd,nkhd->nhqk", q, k) / math.sqrt(64), axis=-1)
            x = x + jnp.einsum("nhqk,nkhd->nqhd", a, v).reshape(n, patches, width) @ block.proj
            x = x + jax.nn.gelu(_norm(x) @ block.fc1) @ block.fc2
        return (_norm(x).mean(1) @ low["head"]).astype(jnp.float32)

    def loss(params: Any, images: jax.Array, labels: jax.Array) -> jax.Array:
        logp = jax.nn.log_softmax(apply(params, images))
        return -jnp.take_along_axis(logp, labels[:, None], axis=1).mean()

    def step(params: Any, images: jax.Array, labels: jax.Array) -> Any:
        value, grads = jax.value_and_grad(loss)(params, images, labels)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

    axes = get_abstract_mesh().axis_names
    data = jax.ShapeDtypeStruct((1024, 224, 224, 3), jnp.float32)
    labels = jax.ShapeDtypeStruct((1024,), jnp.int32)
    jitted = jax.jit(step, in_shardings=(P(), P(axes), P(axes)), out_shardings=P())
    return jitted, (params, data, labels)


def experts(mesh: Mesh) -> Built:
    """A layer of 16 experts, dispatch and combine as einsums over a one-hot mask (GShard)."""
    return _experts(mesh, by_group=NamedSharding(mesh, P(None, "X", None, None)))


def loose_experts(mesh: Mesh) -> Built:
    """The same with a constraint on one side of each exchange only."""
    return _experts(mesh, by_group=None)


def _experts(mesh: Mesh, *, by_group: NamedSharding | None) -> Built:
    group, size, width, hidden, count = mesh.shape["X"] * 4, 2048, 2048, 8192, 16
    capacity = 2 * size // count

    def sharded(*axes: str | None) -> NamedSharding:
        return NamedSharding(mesh, P(*axes))

    by_expert = sharded("X", None, None, None)

    def pin(x: jax.Array, to: NamedSharding | None) -> jax.Array:
        return x if to is None else jax.lax.with_sharding_constraint(x, to)

    def layer(w: dict[str, jax.Array], x_gsd: jax.Array) -> jax.Array:
        scores = jax.nn.softmax((x_gsd @ w["router"]).astype(jnp.float32), axis=-1)
        gate, chosen = jax.lax.top_k(scores, 1)
        onehot = jax.nn.one_hot(chosen[..., 0], count, dtype=jnp.float32)
        rank = jnp.cumsum(onehot, axis=1) * onehot
        slot = jax.nn.one_hot(rank - 1, capacity, dtype=x_gsd.dtype)  # g s e c
        inside = jnp.einsum("gsec,gsd->egcd", slot, x_gsd)
        inside = pin(pin(inside, by_group), by_expert)
        h = pin(jax.nn.relu(jnp.einsum("egcd,edf->egcf", inside, w["up"])), by_expert)
        out = pin(pin(jnp.einsum("egcf,efd->egcd", h, w["down"]), by_expert), by_group)
        back = jnp.einsum("gsec,egcd->gsd", slot, out)
        return back * gate.astype(back.dtype)

    def loss(w: dict[str, jax.Array], x_gsd: jax.Array) -> jax.Array:
        return (layer(w, x_gsd).astype(jnp.float32) ** 2).mean()

    def like(shape: tuple[int, ...], *axes: str | None) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=sharded(*axes))

    weights = {
        "router": like((width, count)),
        "up": like((count, width, hidden), "X", None, None),
        "down": like((count, hidden, width), "X", None, None),
    }
    return jax.jit(jax.grad(loss)), (weights, like((group, size, width), "X", None, None))


def ulysses(mesh: Mesh) -> Built:
    """Attention over a long sequence: split by sequence outside, by heads inside."""
    batch, seq, heads, dim = mesh.shape["X"], 32768, 32, 128
    outside = NamedSharding(mesh, P("X", "Y", None, None))
    inside = NamedSharding(mesh, P("X", None, "Y", None))

    def attend(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        q, k, v = (jax.lax.with_sharding_constraint(t, inside) for t in (q, k, v))
        q = q.reshape(batch, 64, seq // 64, heads, dim)

        def rows(_: None, q_bqhd: jax.Array) -> tuple[None, jax.Array]:
            s = jnp.einsum("bqhd,bkhd->bhqk", q_bqhd, k) / math.sqrt(dim)
            p = jax.nn.softmax(s.astype(jnp.float32), axis=-1).astype(k.dtype)
            return None, jax.lax.with_sharding_constraint(
                jnp.einsum("bhqk,bkhd->bqhd", p, v), inside
            )

        out = jax.lax.scan(rows, None, q.swapaxes(0, 1))[1].swapaxes(0, 1)
        out = out.reshape(batch, seq, heads, dim)
        return jax.lax.with_sharding_constraint(out, outside)

    one = jax.ShapeDtypeStruct((batch, seq, heads, dim), jnp.bfloat16, sharding=outside)
    return jax.jit(attend), (one, one, one)


def merged_batch(mesh: Mesh) -> Built:
    """A mistake people make: batch and heads become one dim, which takes the split of neither."""
    batch, seq, heads, dim = 16, 2048, 32, 128

    def project(x_btd: jax.Array, w_dnh: jax.Array) -> jax.Array:
        y = jnp.einsum("btd,dnh->tnbh", x_btd, w_dnh)
        y = y.reshape(seq, heads * batch, dim)
        scores = jnp.einsum("tmh,smh->mts", y, y)
        return jax.nn.softmax(scores.astype(jnp.float32), axis=-1).astype(x_btd.dtype)

    x = jax.ShapeDtypeStruct(
        (batch, seq, heads * dim), jnp.bfloat16, sharding=NamedSharding(mesh, P("X", None, None))
    )
    w = jax.ShapeDtypeStruct(
        (heads * dim, heads, dim), jnp.bfloat16, sharding=NamedSharding(mesh, P(None, "Y", None))
    )
    out = NamedSharding(mesh, P(("Y", "X"), None, None))
    return jax.jit(project, out_shardings=out), (x, w)


def concrete(mesh: Mesh) -> Built:
    """Arguments that are arrays, and a function that nobody has jitted."""
    del mesh
    return (lambda x: x @ x.T), (np.zeros((256, 128), np.float32),)


def wrong(mesh: Mesh) -> Any:
    """Returns only the function."""
    del mesh
    return jax.jit(jnp.sin)

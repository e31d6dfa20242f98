# pyright: reportUnknownParameterType=false, reportUnknownVariableType=false
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# jax annotates its own functions only in part.
"""Mistakes written after the last change to the findings, in plain jax, scans, MoE and decode.

Every builder has a sound form, `mistaken=False`: the program with the fix applied, which must
raise nothing. The line of a mistake ends in the name of its builder. X splits the rows.
`small_kernel` is older: heads of 8 numbers in tiles of 128.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.sharding import Mesh, PartitionSpec
from mutants import abstract, norm

P = PartitionSpec
Built = tuple[Any, tuple[Any, ...]]
BATCH, SEQ, D, F, N, H = 8, 2048, 4096, 16384, 32, 128
_pin = jax.lax.with_sharding_constraint


def _double(x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[...] * 2


def _doubled(x: jax.Array) -> jax.Array:
    rows = pl.BlockSpec((512, x.shape[1]), lambda i: (i, 0))
    like = jax.ShapeDtypeStruct(x.shape, x.dtype)
    grid = (x.shape[0] // 512,)
    kernel = pl.pallas_call(_double, out_shape=like, grid=grid, in_specs=[rows], out_specs=rows)
    return kernel(x)  # small_kernel


def small_kernel(mesh: Mesh, *, mistaken: bool = True) -> Built:
    """A kernel is given heads of 8 numbers, each in a tile of 128; joined they fill it."""
    spec = P("X", "Y")

    @partial(jax.shard_map, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    def kernel(x: jax.Array) -> jax.Array:
        heads = x.reshape(-1, 8) if mistaken else x
        return _doubled(heads).reshape(x.shape)

    def layer(w_in: jax.Array, w_out: jax.Array, x: jax.Array) -> jax.Array:
        return kernel(x @ w_in) @ w_out

    w_in, w_out = abstract(mesh, (D, D), P(None, "Y")), abstract(mesh, (D, D), P("Y", None))
    return jax.jit(layer), (w_in, w_out, abstract(mesh, (1 << 14, D), P("X", None)))


def stale_heads(mesh: Mesh, *, mistaken: bool = True) -> Built:
    """Keys keep a constraint of the time when Y split the sequence; now it splits heads."""

    def attend(w: dict[str, jax.Array], x: jax.Array) -> jax.Array:
        q, k, v = (jnp.einsum("btd,dnh->btnh", x, w[name]) for name in "qkv")
        if mistaken:
            k = _pin(k, P("X", "Y", None, None))  # stale_heads
        s = _pin(jnp.einsum("btnh,bsnh->bnts", q, k), P("X", "Y", None, None))
        p = jax.nn.softmax(s.astype(jnp.float32), axis=-1).astype(x.dtype)
        out = jnp.einsum("btnh,nhd->btd", jnp.einsum("bnts,bsnh->btnh", p, v), w["o"])
        return x + _pin(out, P("X", None, None))

    weights = {n: abstract(mesh, (D, N, H), P(None, "Y", None)) for n in "qkv"}
    weights["o"] = abstract(mesh, (N, H, D), P("Y", None, None))
    return jax.jit(attend), (weights, abstract(mesh, (BATCH, SEQ, D), P("X", None, None)))


def stale_rows(mesh: Mesh, *, mistaken: bool = True) -> Built:
    """Trained layers in a scan with remat: the norm's result is put where rows are over Y."""

    def loss(w_in: jax.Array, w_out: jax.Array, x: jax.Array) -> jax.Array:
        @jax.checkpoint
        def layer(x: jax.Array, w: Any) -> Any:
            h = norm(x)
            if mistaken:
                h = _pin(h, P("Y", None, None))  # stale_rows
            hidden = _pin(jax.nn.silu(h @ w[0]), P("X", None, "Y"))
            return _pin(x + hidden @ w[1], P("X", None, None)), None

        return jnp.mean(jax.lax.scan(layer, x, (w_in, w_out))[0].astype(jnp.float32) ** 2)

    w_in = abstract(mesh, (4, D, F), P(None, None, "Y"))
    w_out = abstract(mesh, (4, F, D), P(None, "Y", None))
    step = jax.jit(jax.grad(loss, (0, 1)), out_shardings=(w_in.sharding, w_out.sharding))
    return step, (w_in, w_out, abstract(mesh, (BATCH, SEQ, D), P("X", None, None)))


def stale_experts(mesh: Mesh, *, mistaken: bool = True) -> Built:
    """Experts lie over Y; what they hide is still split by width over Y."""

    def layer(up: jax.Array, down: jax.Array, x: jax.Array) -> jax.Array:
        hidden = jax.nn.relu(jnp.einsum("ecd,edf->ecf", x, up))
        if mistaken:
            hidden = _pin(hidden, P(None, "X", "Y"))  # stale_experts
        return _pin(jnp.einsum("ecf,efd->ecd", hidden, down), P("Y", "X", None))

    up, down = (abstract(mesh, shape, P("Y")) for shape in ((8, D, D), (8, D, D)))
    return jax.jit(layer), (up, down, abstract(mesh, (8, 4096, D), P("Y", "X", None)))


def leaked_rope(mesh: Mesh, *, mistaken: bool = True) -> Built:
    """Context parallel: keys are gathered over Y, in the f32 of the table that turned them."""
    angles = np.outer(np.arange(SEQ), 1e4 ** -(np.arange(H // 2) / (H // 2)))
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    dtype = jnp.float32 if mistaken else jnp.bfloat16

    def rope(x: jax.Array) -> jax.Array:
        c, s = (jnp.asarray(t, dtype)[None, :, None, :] for t in (cos, sin))
        a, b = jnp.split(x, 2, axis=-1)
        return jnp.concatenate([a * c - b * s, b * c + a * s], axis=-1)  # leaked_rope

    def attend(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        k = _pin(rope(k), P("X", None, None, None))
        s = jnp.einsum("btnh,bsnh->bnts", rope(q), k)
        p = jax.nn.softmax(s.astype(jnp.float32), axis=-1).astype(q.dtype)
        return jnp.einsum("bnts,bsnh->btnh", p, _pin(v, P("X", None, None, None)))

    one = abstract(mesh, (BATCH, SEQ, N, H), P("X", "Y", None, None))
    return jax.jit(attend), (one, one, one)


def leaked_norm(mesh: Mesh, *, mistaken: bool = True) -> Built:
    """Sequence parallel: a scale in f32 makes what is gathered over Y f32."""

    def layer(scale: jax.Array, w_in: jax.Array, w_out: jax.Array, x: jax.Array) -> jax.Array:
        h = norm(x) * (scale if mistaken else scale.astype(x.dtype))
        hidden = _pin(jax.nn.silu(h @ w_in).astype(x.dtype), P("X", None, "Y"))  # leaked_norm
        return x + _pin(hidden @ w_out, P("X", "Y", None))

    return jax.jit(layer), (
        abstract(mesh, (D,), P(), jnp.float32),
        abstract(mesh, (D, F), P(None, "Y")),
        abstract(mesh, (F, D), P("Y", None)),
        abstract(mesh, (BATCH, SEQ, D), P("X", "Y", None)),
    )


def leaked_gate(mesh: Mesh, *, mistaken: bool = True) -> Built:
    """Gates of experts are f32, and so is what the experts' last matmul sums over Y."""

    def layer(w: dict[str, jax.Array], x: jax.Array) -> jax.Array:
        gates = jax.nn.softmax((x @ w["router"]).astype(jnp.float32))
        if not mistaken:
            gates = gates.astype(x.dtype)
        hidden = jax.nn.relu(jnp.einsum("td,edf->tef", x, w["up"])) * gates[..., None]
        out = jnp.einsum("tef,efd->td", hidden, w["down"])  # leaked_gate
        return (x + _pin(out, P("X", None))).astype(x.dtype)

    weights = {
        "router": abstract(mesh, (D, 4), P()),
        "up": abstract(mesh, (4, D, D), P(None, None, "Y")),
        "down": abstract(mesh, (4, D, D), P(None, "Y", None)),
    }
    return jax.jit(layer), (weights, abstract(mesh, (BATCH * SEQ, D), P("X", None)))


def printed_layers(mesh: Mesh, *, mistaken: bool = True) -> Built:
    """Every layer of a scan prints how large its activations are; sound: one step in a hundred."""

    def step(w: jax.Array, x: jax.Array, at: jax.Array) -> jax.Array:
        def layer(x: jax.Array, w: jax.Array) -> Any:
            x = jnp.tanh(x @ w)
            size = jnp.max(jnp.abs(x))
            if mistaken:
                jax.debug.print("largest {}", size)  # printed_layers
            return x, size

        x, sizes = jax.lax.scan(layer, x, w)

        def tell(size: jax.Array) -> None:
            jax.debug.print("largest {}", size)

        if not mistaken:
            jax.lax.cond(at % 100 == 0, tell, lambda size: None, jnp.max(sizes))
        return x

    at = jax.ShapeDtypeStruct((), jnp.int32)
    w, x = abstract(mesh, (4, D, D), P()), abstract(mesh, (1 << 15, D), P(("X", "Y"), None))
    return jax.jit(step), (w, x, at)


def host_sampling(mesh: Mesh, *, mistaken: bool = True) -> Built:
    """Decode that has numpy on the host choose the next tokens."""

    def choose(logits: jax.Array) -> jax.Array:
        if not mistaken:
            return jnp.argmax(logits, axis=-1).astype(jnp.int32)
        like = jax.ShapeDtypeStruct(logits.shape[:1], jnp.int32)
        return jax.pure_callback(_largest, like, logits)  # host_sampling

    def step(head: jax.Array, x: jax.Array) -> jax.Array:
        return choose(x @ head)

    return jax.jit(step), (
        abstract(mesh, (D, 32768), P(None, "Y")),
        abstract(mesh, (64, D), P("X", None)),
    )


def _largest(logits: Any) -> Any:
    return np.argmax(np.asarray(logits, np.float32), axis=-1).astype(np.int32)


def odd_vocabulary(mesh: Mesh, *, mistaken: bool = True) -> Built:
    """50,257 tokens divide by nothing, so that table and logits are whole; sound: 50,304."""
    size = 50257 if mistaken else 50304
    split = P() if mistaken else P(None, "Y")

    def loss(head: jax.Array, w: jax.Array, x: jax.Array, labels: jax.Array) -> jax.Array:
        x = jax.nn.relu(x @ w[0]) @ w[1]
        logits = (_pin(x, P("X", None)) @ head).astype(jnp.float32)  # odd_vocabulary
        hot = jax.nn.one_hot(labels, size, dtype=jnp.float32)
        return jnp.mean(jax.nn.logsumexp(logits, -1) - jnp.sum(logits * hot, -1))

    head = abstract(mesh, (D, size), split)
    w = abstract(mesh, (D, F), P(None, "Y")), abstract(mesh, (F, D), P("Y", None))
    rows = abstract(mesh, (8192, D), P("X", None)), abstract(mesh, (8192,), P("X"), jnp.int32)
    return jax.jit(loss), (head, w, *rows)


def manual_cache(mesh: Mesh, *, mistaken: bool = True) -> Built:
    """A cache that a shard_map writes into is not donated."""
    spec, row = P("X", None, "Y", None), P("X", "Y", None)

    @partial(jax.shard_map, mesh=mesh, in_specs=(spec, row, row, P()), out_specs=(spec, row))
    def attend(cache: jax.Array, new: jax.Array, q: jax.Array, at: jax.Array) -> Any:
        cache = jax.lax.dynamic_update_slice_in_dim(cache, new[:, None], at, 1)  # manual_cache
        s = jnp.einsum("bnh,bsnh->bns", q, cache).astype(jnp.float32)
        p = jax.nn.softmax(s, axis=-1).astype(q.dtype)
        return cache, jnp.einsum("bns,bsnh->bnh", p, cache)

    how: dict[str, Any] = {} if mistaken else {"donate_argnames": "cache"}
    cache = abstract(mesh, (16, 16384, N, H), spec)
    new, at = abstract(mesh, (16, N, H), row), jax.ShapeDtypeStruct((), jnp.int32)
    return jax.jit(attend, **how), (cache, new, new, at)


def whole_logits(mesh: Mesh, *, mistaken: bool = True) -> Built:
    """Decode gathers the logits of the whole vocabulary to find the largest."""

    def step(head: jax.Array, x: jax.Array) -> jax.Array:
        logits = x @ head
        if mistaken:
            logits = _pin(logits, P("X", None))  # whole_logits
        return jnp.argmax(logits, axis=-1)

    head = abstract(mesh, (D, 1 << 17), P(None, "Y"))
    return jax.jit(step), (head, abstract(mesh, (256, D), P("X", None)))


def tied_table(mesh: Mesh, *, mistaken: bool = True) -> Built:
    """A tied table is split by width, so that all logits are summed over Y."""
    spec = P(None, "Y") if mistaken else P("Y", None)

    def loss(table: jax.Array, tokens: jax.Array) -> jax.Array:
        x = _pin(table[tokens[:, :-1]], P("X", None, None))
        logits = jnp.einsum("btd,vd->btv", x, table)  # tied_table
        logits = _pin(logits, P("X", None, "Y")).astype(jnp.float32)
        hot = jax.nn.one_hot(tokens[:, 1:], 32768, dtype=jnp.float32)
        return jnp.mean(jax.nn.logsumexp(logits, -1) - jnp.sum(logits * hot, -1))

    table = abstract(mesh, (32768, D), spec)
    tokens = abstract(mesh, (BATCH, SEQ + 1), P("X", None), jnp.int32)
    return jax.jit(loss), (table, tokens)


def gathered_experts(mesh: Mesh, *, mistaken: bool = True) -> Built:
    """The few tokens of decode stay where they are, and the experts come to them."""

    def layer(up: jax.Array, down: jax.Array, x: jax.Array) -> jax.Array:
        place = P(None, ("X", "Y"), None) if mistaken else P(("X", "Y"), None, None)
        x = _pin(x, place)
        hidden = jax.nn.relu(jnp.einsum("ecd,edf->ecf", x, up))  # gathered_experts
        return _pin(jnp.einsum("ecf,efd->ecd", _pin(hidden, place), down), place)

    split = P(("X", "Y"), None, None)
    up, down = abstract(mesh, (16, D, D), split), abstract(mesh, (16, D, D), split)
    return jax.jit(layer), (up, down, abstract(mesh, (16, 64, D), P(None, ("X", "Y"), None)))

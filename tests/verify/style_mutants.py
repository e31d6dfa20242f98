# pyright: reportUnknownParameterType=false, reportUnknownVariableType=false
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# jax annotates its own functions only in part.
"""Mistakes of the styles people write in: MLPs, caches, shard_map, explicit axes, pipelines.

Every builder has a sound form, `mistaken=False`: the program with the fix applied, which must
raise nothing. The line of a mistake ends in the name of its builder. X splits the rows.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, PartitionSpec
from mutants import abstract, norm

P = PartitionSpec
Built = tuple[Any, tuple[Any, ...]]
Weights = dict[str, jax.Array]
ROWS, D, F, LAYERS = 8192, 4096, 16384, 2
_MLP = {"gate": (D, F), "up": (D, F), "down": (F, D)}
_TP = {"gate": P(None, "Y"), "up": P(None, "Y"), "down": P("Y", None)}
_ACROSS = {"gate": P("Y", None), "up": P("Y", None), "down": P(None, "Y")}


def _layers(mesh: Mesh, specs: dict[str, PartitionSpec], count: int = LAYERS) -> list[Any]:
    layer = {name: abstract(mesh, _MLP[name], spec) for name, spec in specs.items()}
    return [layer] * count


def _mlp(x: jax.Array, w: Weights) -> jax.Array:
    hidden = jax.nn.silu(x @ w["gate"]) * (x @ w["up"])  # narrow_tp, replicated_up, wide_decode
    return x + hidden @ w["down"]  # transposed_down


def _forward(layers: list[Weights], x: jax.Array) -> jax.Array:
    for w in layers:
        x = jax.lax.with_sharding_constraint(_mlp(x, w), P("X", None))
    return x


def _loss(layers: list[Weights], x: jax.Array) -> jax.Array:
    return jnp.mean(_forward(layers, x).astype(jnp.float32) ** 2)


def _gradients(layers: list[Any]) -> Any:
    return jax.jit(jax.grad(_loss), out_shardings=jax.tree.map(lambda w: w.sharding, layers))


def narrow_tp(mesh: Mesh, *, mistaken: bool = True) -> Built:
    """All weights of a trained MLP are split on the narrow dim."""
    layers = _layers(mesh, _ACROSS if mistaken else _TP)
    return _gradients(layers), (layers, abstract(mesh, (ROWS, D), P("X", None)))


def wide_decode(mesh: Mesh, *, mistaken: bool = True) -> Built:
    """The same with the few rows of decode, where hidden units are summed instead."""
    layers = _layers(mesh, _ACROSS if mistaken else _TP)
    return jax.jit(_forward), (layers, abstract(mesh, (64, D), P("X", None)))


def transposed_down(mesh: Mesh, *, mistaken: bool = True) -> Built:
    """FSDP and tensor parallelism; the spec of the last weight is that of the others."""
    specs = {
        "gate": P("X", "Y"),
        "up": P("X", "Y"),
        "down": P("X", "Y") if mistaken else P("Y", "X"),
    }
    layers = _layers(mesh, specs)
    return _gradients(layers), (layers, abstract(mesh, (ROWS, D), P("X", None)))


def stacked_across(mesh: Mesh, *, mistaken: bool = True) -> Built:
    """Layers in a scan with remat; two weights, an activation in a function of its own."""
    specs = (
        (P(None, "Y", None), P(None, None, "Y")) if mistaken else (P(None, None, "Y"), P(None, "Y"))
    )

    def activation(x: jax.Array) -> jax.Array:
        return jax.nn.gelu(x)

    def loss(w_in: jax.Array, w_out: jax.Array, x: jax.Array) -> jax.Array:
        @jax.checkpoint
        def layer(x: jax.Array, w: Any) -> Any:
            hidden = activation(norm(x) @ w[0])  # stacked_across
            return jax.lax.with_sharding_constraint(x + hidden @ w[1], P("X", None)), None

        return jnp.mean(jax.lax.scan(layer, x, (w_in, w_out))[0].astype(jnp.float32) ** 2)

    w_in, w_out = abstract(mesh, (4, D, F), specs[0]), abstract(mesh, (4, F, D), specs[1])
    step = jax.jit(jax.grad(loss, (0, 1)), out_shardings=(w_in.sharding, w_out.sharding))
    return step, (w_in, w_out, abstract(mesh, (ROWS, D), P("X", None)))


def replicated_up(mesh: Mesh, *, mistaken: bool = True) -> Built:
    """One weight of each layer has no sharding; its neighbour of the same shape has one."""
    layers = _layers(mesh, _TP | ({"up": P()} if mistaken else {}), 4)
    return jax.jit(_forward), (layers, abstract(mesh, (ROWS, D), P("X", None)))


def _attend(x: jax.Array, w: Weights, cache: Any, at: jax.Array) -> Any:
    q, k, v = (jnp.einsum("bd,dkh->bkh", x, w[name]) for name in "qkv")
    write = partial(jax.lax.dynamic_update_slice_in_dim, start_index=at, axis=2)
    keys = write(cache[0], k[:, :, None])  # kept_cache, whole_cache
    values = write(cache[1], v[:, :, None])  # whole_cache
    scores = jnp.einsum("bkh,bksh->bks", q, keys).astype(jnp.float32)
    weights = jax.nn.softmax(scores, axis=-1).astype(x.dtype)
    out = jnp.einsum("bks,bksh->bkh", weights, values)
    return x + jnp.einsum("bkh,khd->bd", out, w["out"]), (keys, values)


def _decode(mesh: Mesh, cache_spec: PartitionSpec, **how: Any) -> Built:
    heads, width, seq = 32, 128, 8192
    weights = {n: abstract(mesh, (D, heads, width), P(None, "Y", None)) for n in "qkv"}
    weights["out"] = abstract(mesh, (heads, width, D), P("Y", None, None))
    cache = (abstract(mesh, (16, heads, seq, width), cache_spec),) * 2

    def step(layers: list[Weights], caches: list[Any], x: jax.Array, at: jax.Array) -> Any:
        new: list[Any] = []
        for w, cache in zip(layers, caches, strict=True):
            x, cache = _attend(x, w, cache, at)
            new.append(cache)
        return x, new

    x, at = abstract(mesh, (16, D), P("X", None)), jax.ShapeDtypeStruct((), jnp.int32)
    return jax.jit(step, **how), ([weights] * 2, [cache] * 2, x, at)


def kept_cache(mesh: Mesh, *, mistaken: bool = True) -> Built:
    """The KV cache is updated, and the old one is kept."""
    how: dict[str, Any] = {} if mistaken else {"donate_argnames": "caches"}
    return _decode(mesh, P("X", "Y", None, None), **how)


def whole_cache(mesh: Mesh, *, mistaken: bool = True) -> Built:
    """Every device of Y has the keys and values of all heads."""
    spec = P("X") if mistaken else P("X", "Y", None, None)
    return _decode(mesh, spec, donate_argnames="caches")


def kept_state(mesh: Mesh, *, mistaken: bool = True) -> Built:
    """Momentum in plain jax; neither weights nor moments are donated."""

    def step(state: Any, x: jax.Array) -> Any:
        weights, moments = state
        grads = jax.grad(_loss)(weights, x)

        def momentum(m: jax.Array, g: jax.Array) -> jax.Array:
            return 0.9 * m + g.astype(m.dtype)  # kept_state

        moments = jax.tree.map(momentum, moments, grads)
        weights = jax.tree.map(lambda w, m: w - (0.1 * m).astype(w.dtype), weights, moments)
        return weights, moments

    weights = _layers(mesh, _TP)
    moments = jax.tree.map(lambda w: abstract(mesh, w.shape, w.sharding.spec, jnp.float32), weights)
    how: dict[str, Any] = {} if mistaken else {"donate_argnums": 0}
    return jax.jit(step, **how), ((weights, moments), abstract(mesh, (ROWS, D), P("X", None)))


def manual_tp(mesh: Mesh, *, mistaken: bool = True) -> Built:
    """Tensor parallelism by hand; the weights come in whole, so every device does all of it."""
    split = (P(), P()) if mistaken else (P(None, "Y"), P("Y", None))

    @partial(jax.shard_map, mesh=mesh, in_specs=(*split, P("X", None)), out_specs=P("X", None))
    def layer(w_in: jax.Array, w_out: jax.Array, x: jax.Array) -> jax.Array:
        out = jax.nn.relu(x @ w_in) @ w_out  # manual_tp
        return out if mistaken else jax.lax.psum(out, "Y")

    w_in, w_out = abstract(mesh, (D, F), P(None, "Y")), abstract(mesh, (F, D), P("Y", None))
    return jax.jit(layer), (w_in, w_out, abstract(mesh, (ROWS, D), P("X", None)))


def explicit_mesh(mesh: Mesh) -> Mesh:
    kinds = (AxisType.Explicit,) * len(mesh.axis_names)
    return Mesh(mesh.devices, mesh.axis_names, axis_types=kinds)


def explicit_hidden(mesh: Mesh, *, mistaken: bool = True) -> Built:
    """Sharding in types: the hidden array is resharded to be whole before the second matmul."""
    mesh = explicit_mesh(mesh)

    def layer(w_in: jax.Array, w_out: jax.Array, x: jax.Array) -> jax.Array:
        hidden = jax.nn.silu(x @ w_in)
        if mistaken:
            hidden = jax.reshard(hidden, P("X", None))  # explicit_hidden
        return jnp.einsum("bf,fd->bd", hidden, w_out, out_sharding=P("X", None))

    w_in, w_out = abstract(mesh, (D, F), P(None, "Y")), abstract(mesh, (F, D), P("Y", None))
    return jax.jit(layer), (w_in, w_out, abstract(mesh, (ROWS, D), P("X", None)))


def stale_constraint(mesh: Mesh, *, mistaken: bool = True) -> Built:
    """A constraint of the time when Y split the sequence is left between matmuls."""

    def layer(w_in: jax.Array, w_out: jax.Array, x: jax.Array) -> jax.Array:
        hidden = jax.nn.gelu(x @ w_in)
        if mistaken:
            hidden = jax.lax.with_sharding_constraint(hidden, P("X", "Y", None))  # stale_constraint
        return jax.lax.with_sharding_constraint(x + hidden @ w_out, P("X", None, None))

    w_in, w_out = abstract(mesh, (D, F), P(None, "Y")), abstract(mesh, (F, D), P("Y", None))
    return jax.jit(layer), (w_in, w_out, abstract(mesh, (8, 2048, D), P("X", None, None)))


def leaked_f32(mesh: Mesh, *, mistaken: bool = True) -> Built:
    """A scale in f32 makes the rest of the layer f32: matmuls and what crosses the network."""

    def layer(scale: jax.Array, w_in: jax.Array, w_out: jax.Array, x: jax.Array) -> jax.Array:
        hidden = jax.nn.silu(x @ w_in)
        hidden = hidden * (scale if mistaken else scale.astype(x.dtype))
        out = hidden @ w_out  # leaked_f32
        return (x + jax.lax.with_sharding_constraint(out, P("X", None))).astype(x.dtype)

    w_in, w_out = abstract(mesh, (D, F), P(None, "Y")), abstract(mesh, (F, D), P("Y", None))
    scale = abstract(mesh, (F,), P("Y"), jnp.float32)
    return jax.jit(layer), (scale, w_in, w_out, abstract(mesh, (ROWS, D), P("X", None)))


def split_layers(mesh: Mesh, *, mistaken: bool = True) -> Built:
    """The dim of the layers is split, so each round of the scan fetches its weights."""
    specs = (P("Y"), P("Y")) if mistaken else (P(None, None, "Y"), P(None, "Y", None))

    def forward(w_in: jax.Array, w_out: jax.Array, x: jax.Array) -> jax.Array:
        def layer(x: jax.Array, w: Any) -> Any:
            hidden = jax.nn.silu(x @ w[0])  # split_layers
            return jax.lax.with_sharding_constraint(x + hidden @ w[1], P("X", None)), None

        return jax.lax.scan(layer, x, (w_in, w_out))[0]

    weights = abstract(mesh, (8, D, F), specs[0]), abstract(mesh, (8, F, D), specs[1])
    return jax.jit(forward), (*weights, abstract(mesh, (ROWS, D), P("X", None)))


def host_callback(mesh: Mesh, *, mistaken: bool = True) -> Built:
    """The step prints its loss, for which the device waits for the host."""

    def step(layers: list[Weights], x: jax.Array) -> jax.Array:
        loss = _loss(layers, x)
        if mistaken:
            jax.debug.print("loss {}", loss)  # host_callback
        return loss

    return jax.jit(step), (_layers(mesh, _TP), abstract(mesh, (ROWS, D), P("X", None)))


def joined_batches(mesh: Mesh, *, mistaken: bool = True) -> Built:
    """Prompts and answers are put one after the other along the dim that X splits."""

    def score(w: jax.Array, chosen: jax.Array, rejected: jax.Array) -> jax.Array:
        if mistaken:
            both = jnp.concatenate([chosen, rejected])  # joined_batches
            both = jax.lax.with_sharding_constraint(both, P("X", None, None))
            return jnp.mean(jax.nn.relu(both @ w).astype(jnp.float32))
        parts = (jnp.mean(jax.nn.relu(x @ w).astype(jnp.float32)) for x in (chosen, rejected))
        return sum(parts, start=jnp.float32(0))

    rows = abstract(mesh, (16, 2048, D), P("X", None, None))
    return jax.jit(score), (abstract(mesh, (D, 512), P(None, "Y")), rows, rows)

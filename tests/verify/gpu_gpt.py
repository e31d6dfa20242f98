# pyright: reportUnknownParameterType=false, reportUnknownVariableType=false
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# jax annotates its own functions only in part.
"""A GPT as llm-foundry trains its MPT, in plain JAX: FSDP, flash attention (cuDNN's), AdamW.

Weights and moments are f32 and split; each layer gathers its weights in bf16 and scatters their
gradients; microbatches are added up; nothing is recomputed, or every layer is.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

P = PartitionSpec
VOCAB, H = 50368, 128


def build(
    mesh: Mesh, *, layers: int, width: int, seq: int, micro: int, rounds: int, remat: bool
) -> tuple[Any, tuple[Any, ...]]:
    """A step of `rounds` microbatches, of `micro` sequences on every device."""
    n = width // H
    shapes: dict[str, tuple[int, ...]] = {
        "qkv": (layers, width, 3, n, H),
        "out": (layers, n, H, width),
        "up": (layers, width, 4 * width),
        "down": (layers, 4 * width, width),
        "embed": (VOCAB, width),
    }
    split = {"qkv": 1, "out": 3, "up": 1, "down": 2, "embed": 1}
    places = {
        name: NamedSharding(mesh, P(*("X" if at == split[name] else None for at in range(len(s)))))
        for name, s in shapes.items()
    }

    def pin(x: Any, *axes: Any) -> Any:
        return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P(*axes)))

    def attend(q: Any, k: Any, v: Any) -> Any:
        return jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation="cudnn")

    rows = P("X")
    own = jax.shard_map(attend, mesh=mesh, in_specs=(rows,) * 3, out_specs=rows, check_vma=False)

    def norm(x: Any) -> Any:
        wide = x.astype(jnp.float32)
        wide = wide - jnp.mean(wide, -1, keepdims=True)
        return (wide * jax.lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + 1e-5)).astype(
            x.dtype
        )

    def layer(x: Any, w: dict[str, Any]) -> Any:
        w = {name: pin(value) for name, value in w.items()}
        q, k, v = jnp.moveaxis(jnp.einsum("btd,dsnh->btsnh", norm(x), w["qkv"]), 2, 0)
        x = pin(x + jnp.einsum("btnh,nhd->btd", own(q, k, v), w["out"]), "X")
        return pin(x + jax.nn.gelu(norm(x) @ w["up"]) @ w["down"], "X"), None

    def loss(params: dict[str, Any], tokens: Any) -> Any:
        stacked = {name: value for name, value in params.items() if name != "embed"}
        table = pin(params["embed"])
        x = pin(table[tokens[:, :-1]], "X")
        x, _ = jax.lax.scan(jax.checkpoint(layer) if remat else layer, x, stacked)
        logits = pin(jnp.einsum("btd,vd->btv", norm(x), table), "X").astype(jnp.float32)
        hot = jax.nn.one_hot(tokens[:, 1:], VOCAB, dtype=jnp.float32)
        return jnp.mean(jax.nn.logsumexp(logits, -1) - jnp.sum(logits * hot, -1))

    def step(state: Any, tokens: Any) -> Any:
        params, mean, var = state
        half = {name: value.astype(jnp.bfloat16) for name, value in params.items()}

        def one(total: Any, rows: Any) -> Any:
            grads = jax.grad(loss)(half, rows)
            grads = {k: jax.lax.with_sharding_constraint(g, places[k]) for k, g in grads.items()}
            return jax.tree.map(lambda t, g: t + g.astype(t.dtype), total, grads), None

        start = jax.tree.map(partial(jnp.zeros_like, dtype=jnp.float32), params)
        grads, _ = jax.lax.scan(one, start, tokens)
        mean = {k: 0.9 * m + 0.1 * grads[k] for k, m in mean.items()}
        var = {k: 0.95 * v + 0.05 * jnp.square(grads[k]) for k, v in var.items()}
        new = {k: w - 1e-4 * mean[k] / (jnp.sqrt(var[k]) + 1e-8) for k, w in params.items()}
        return new, mean, var

    params = {
        name: jax.ShapeDtypeStruct(shape, jnp.float32, sharding=places[name])
        for name, shape in shapes.items()
    }
    place = NamedSharding(mesh, P(None, "X"))
    like = (rounds, micro * mesh.shape["X"], seq + 1)
    tokens = jax.ShapeDtypeStruct(like, jnp.int32, sharding=place)
    return jax.jit(step, donate_argnums=0, out_shardings=(places,) * 3), ((params,) * 3, tokens)

"""FSDP and tensor parallelism by hand: one moves weights, the other activations. Which is less?"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

import lab

D, F = 64, 256
FSDP = P("X"), P("X", None), P(None, "X")  # x, W_in, W_out: rows; weights along D
TENSOR = P(None, "X"), P(None, "X"), P("X", None)  # the stream along D; weights along F


# %% A layer and its loss, three times: for one device, and for each of eight.
def alone(x: jax.Array, w_in: jax.Array, w_out: jax.Array) -> jax.Array:
    return jnp.sum((jnp.tanh(x @ w_in) @ w_out) ** 2)


def fsdp(x: jax.Array, w_in: jax.Array, w_out: jax.Array) -> jax.Array:
    """Gather a weight when it is needed; its gradient comes back as a reduce-scatter."""
    h = jnp.tanh(x @ lax.all_gather(w_in, "X", axis=0, tiled=True))
    y = h @ lax.all_gather(w_out, "X", axis=1, tiled=True)
    return lax.psum(jnp.sum(y**2), "X")


def tensor(x: jax.Array, w_in: jax.Array, w_out: jax.Array) -> jax.Array:
    """Gather the stream, multiply by a part of the weights, scatter the pending sum."""
    h = jnp.tanh(lax.all_gather(x, "X", axis=1, tiled=True) @ w_in)
    y = lax.psum_scatter(h @ w_out, "X", scatter_dimension=1, tiled=True)
    return lax.psum(jnp.sum(y**2), "X")


# %% Predict: matmuls of a layer, each in its sharding; what was gathered is kept.
FSDP_MATMULS = (
    "x[B_X,D] * W_in[D_X,F] -> h[B_X,F]",
    "h[B_X,F] * W_out[F,D_X] -> y[B_X,D]",
    "h[B_X,F] * dy[B_X,D] -> dW_out[F,D_X]",
    "x[B_X,D] * dh[B_X,F] -> dW_in[D_X,F]",
)
TENSOR_MATMULS = (
    "x[B,D_X] * W_in[D,F_X] -> h[B,F_X]",
    "h[B,F_X] * W_out[F_X,D] -> y[B,D_X]",
    "dy[B,D_X] * W_out[F_X,D] -> dh[B,F_X]",
    "dh[B,F_X] * W_in[D,F_X] -> dx[B,D_X]",
)

# %% Run them on few tokens and on many.
jax.set_mesh(jax.make_mesh((8,), ("X",)))
rng = np.random.default_rng(0)
w_in, w_out = (0.1 * rng.normal(size=s).astype(np.float32) for s in ((D, F), (F, D)))
moved: dict[tuple[str, int], int] = {}
rows: list[list[str]] = []
ways: dict[str, str] = {}
for tokens in (64, 4096):
    x = rng.normal(size=(tokens, D)).astype(np.float32)
    whole = [jax.device_put(a, P()) for a in (x, w_in, w_out)]
    reference = jax.jit(jax.grad(alone, (0, 1, 2)))(*whole)
    for name, local, specs, matmuls in (
        ("fsdp", fsdp, FSDP, FSDP_MATMULS),
        ("tensor", tensor, TENSOR, TENSOR_MATMULS),
    ):
        layer = jax.shard_map(local, in_specs=specs, out_specs=P())
        arrays = [jax.device_put(a, s) for a, s in zip((x, w_in, w_out), specs, strict=True)]
        step = jax.jit(jax.value_and_grad(layer, (0, 1, 2)))
        compiled = lab.moved(lab.compiled(step, *arrays))
        prices = lab.best(matmuls, {"B": tokens, "D": D, "F": F})
        derived = lab.derived(prices)
        derived["all_reduce"] = 4  # the loss
        assert compiled == derived, (
            f"{name}, {tokens} tokens: {derived} derived, {compiled} compiled"
        )
        for mine, true in zip(step(*arrays)[1], reference, strict=True):
            np.testing.assert_allclose(mine, true, rtol=1e-3, atol=1e-3)
        ways |= {text: price.summary for text, price in zip(matmuls, prices, strict=True)}
        moved[name, tokens] = sum(compiled.values())
        held = sum(a.addressable_shards[0].data.nbytes for a in arrays[1:])
        rows.append([str(tokens), name, lab.size(moved[name, tokens]), lab.size(held)])

# %% Compare.
lab.question("what each product needs")
lab.show(["product", "best"], [[text, summary] for text, summary in ways.items()])
lab.question("bytes that a layer moves, and the weights per device holds")
lab.show(["tokens", "layout", "moved", "weights per device"], rows)
assert moved["fsdp", 64] == moved["fsdp", 4096], "FSDP moves weights, whatever the tokens"
assert moved["tensor", 4096] > 32 * moved["tensor", 64], "tensor parallelism moves activations"
assert moved["tensor", 64] < moved["fsdp", 64] < moved["tensor", 4096]
print(f"\nthey are even where a step has as many tokens as the layer is wide: {F}")

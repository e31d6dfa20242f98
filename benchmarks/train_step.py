"""One train step through the public API beside the same maths written by hand.

Both steps are one jit on one device, run in turn.
"""

import os
import time

os.environ["JAX_PLATFORMS"] = "cpu"

from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax  # pyright: ignore[reportMissingTypeStubs]
from jax import lax

from benchmarks.record import Row, ratio_row, row_of
from rooflight.dtypes import DTYPES
from rooflight.hardware.mesh import parse_mesh
from rooflight.models.graph.build import model_graph
from rooflight.models.graph.count import dim_sizes
from rooflight.models.graph.ops import Mask
from rooflight.models.layout.rules import parse_layout
from rooflight.models.spec import Attention, Block, Mlp, ModelSpec, Repeat
from rooflight.plan.training.derive.constraints import constraints_of
from rooflight.program.attention.kernels import attend
from rooflight.program.model.forward import Program
from rooflight.program.shardings import device_mesh
from rooflight.program.train import Batch, init_state, make_train_step

BATCH, SEQ, EPS = 4, 128, 1e-5
BLOCK = Block(Attention(8, 4, 32), Mlp(1024))
MODEL = ModelSpec("small", "Small", 256, 2048, (Repeat((BLOCK,), 4),))
Weights = dict[str, Any]


def norm(x: Any, scale: Any) -> Any:
    return x * lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + EPS) * scale


def apply_rope(x: Any) -> Any:
    half = x.shape[-1] // 2
    rates = 10_000.0 ** (-np.arange(half) / half)
    angles = (np.arange(x.shape[1])[:, None] * rates).astype(np.float32)
    angles = angles.reshape(x.shape[1], *(1,) * (x.ndim - 3), half)
    one, two, cos, sin = x[..., :half], x[..., half:], np.cos(angles), np.sin(angles)
    return jnp.concatenate([one * cos - two * sin, two * cos + one * sin], -1)


def layer(x: Any, w: Weights) -> Any:
    h = norm(x, w["attention_in_norm.Scale"])
    q = apply_rope(jnp.einsum("btd,dkgh->btkgh", h, w["attention.W_q"]))
    k = apply_rope(jnp.einsum("btd,dkh->btkh", h, w["attention.W_k"]))
    v = jnp.einsum("btd,dkh->btkh", h, w["attention.W_v"])
    heads = attend(q, k, v, mask=Mask(), scale=q.shape[-1] ** -0.5)
    x = x + jnp.einsum("btkgh,kghd->btd", heads, w["attention.W_o"])
    m = norm(x, w["mlp_in_norm.Scale"])
    hidden = jax.nn.silu(m @ w["mlp.W_gate"]) * (m @ w["mlp.W_in"])
    return x + hidden @ w["mlp.W_out"], None


def loss_of(params: Any, batch: Batch) -> Any:
    frame, layers = params
    x = frame["embedding.W_embed"][batch.tokens]
    x = norm(lax.scan(layer, x, layers[0][0])[0], frame["final_norm.Scale"])

    def losses(x: Any, targets: Any, weights: Any) -> Any:
        logits = x @ frame["head.W_head"]
        found = jnp.take_along_axis(logits, targets[..., None], -1)[..., 0]
        return ((jax.nn.logsumexp(logits, -1) - found) * weights).sum()

    total = losses(x, batch.targets, batch.weights)
    return total / batch.weights.sum()


def bare_step(state: Any, batch: Batch, optimizer: Any) -> Any:
    params, inner = state
    loss, gradients = jax.value_and_grad(loss_of)(params, batch)
    updates, inner = optimizer.update(gradients, inner, params)
    return (optax.apply_updates(params, updates), inner), loss


def run(*, quick: bool) -> Iterator[Row]:
    seconds = _timed(3 if quick else 30)
    yield row_of("through the API", seconds["ours"])
    yield row_of("by hand", seconds["bare"])
    yield ratio_row("through the API / by hand", seconds["ours"], seconds["bare"])


def _timed(rounds: int) -> dict[str, list[float]]:
    graph, mesh = model_graph(MODEL), parse_mesh("X=1", on="v5e:1x1")
    dims, layout = dim_sizes(graph, batch=BATCH, seq=SEQ), parse_layout("fsdp=X")
    program = Program(
        MODEL, constraints_of(graph, layout, mesh=mesh, dims=dims, dtype=DTYPES["bf16"])
    )
    optimizer = optax.adamw(1e-3)
    rng = np.random.default_rng(0)
    drawn = [rng.integers(0, MODEL.vocab, (BATCH, SEQ)).astype(np.int32) for _ in range(2)]
    rows = [*drawn, np.ones((BATCH, SEQ), np.float32)]
    one = device_mesh(program.constraints.axes)
    with jax.set_mesh(one):
        state = init_state(program, optimizer, jax.random.key(0))
        batch = Batch(*map(jnp.asarray, rows))
    params = jax.tree.map(jnp.asarray, jax.tree.map(np.array, tuple(state.params)))
    other = (params, jax.jit(optimizer.init)(params))
    ours = make_train_step(program, optimizer)
    bare = jax.jit(partial(bare_step, optimizer=optimizer), donate_argnums=0)
    plain = Batch(*map(jnp.asarray, rows))
    seconds: dict[str, list[float]] = {"ours": [], "bare": []}
    for i in range(rounds + 1):  # the first compiles
        losses: list[float] = []
        for name in sorted(seconds, reverse=i % 2 == 0):  # neither is always the first
            with jax.set_mesh(one) if name == "ours" else nullcontext():
                begin = time.perf_counter()
                if name == "ours":
                    state, loss = jax.block_until_ready(ours(state, batch))
                else:
                    other, loss = jax.block_until_ready(bare(other, plain))
                seconds[name].append(time.perf_counter() - begin)
            losses.append(float(loss))
        assert abs(losses[0] - losses[1]) < 1e-4, "the two steps must compute the same loss"
    return {name: times[1:] for name, times in seconds.items()}

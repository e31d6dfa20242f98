"""One generate step through the public API beside the same maths written by hand.

Both steps are one jit on one device with a donated cache, run in turn.
"""

import os
import time
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial

os.environ["JAX_PLATFORMS"] = "cpu"

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks.record import Row, ratio_row, row_of
from rooflight.dtypes import DTYPES
from rooflight.hardware.mesh import parse_mesh
from rooflight.models.graph.build import model_graph
from rooflight.models.graph.count import dim_sizes
from rooflight.models.layout.rules import parse_layout
from rooflight.models.spec import Attention, Block, Mlp, ModelSpec, Repeat
from rooflight.plan.training.derive.constraints import constraints_of
from rooflight.program.decode.cache import init_cache
from rooflight.program.decode.step import generate
from rooflight.program.model.forward import Program
from rooflight.program.model.params import init_params
from rooflight.program.shardings import device_mesh

BATCH, TABLE, SIZE, EPS = 64, 16, 16, 1e-5
BLOCK = Block(Attention(16, 4, 64), Mlp(2048))
MODEL = ModelSpec("small", "Small", 512, 4096, (Repeat((BLOCK,), 8),))
Weights = dict[str, Any]


def norm(x: Any, scale: Any) -> Any:
    return x * lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + EPS) * scale


def apply_rope(x: Any, positions: Any) -> Any:
    half = x.shape[-1] // 2
    rates = 10_000.0 ** (-np.arange(half) / half)
    angles = positions.astype(jnp.float32)[:, None] * rates.astype(np.float32)
    angles = angles.reshape(x.shape[0], *(1,) * (x.ndim - 2), half)
    one, two, cos, sin = x[..., :half], x[..., half:], jnp.cos(angles), jnp.sin(angles)
    return jnp.concatenate([one * cos - two * sin, two * cos + one * sin], -1)


def bare_step(params: Any, pages: Any, tokens: Any, positions: Any, tables: Any) -> Any:
    frame, layers = params
    block = jnp.take_along_axis(tables, positions[:, None] // SIZE, 1)[:, 0]
    seen = jnp.arange(TABLE * SIZE) <= positions[:, None]

    def layer(state: Any, mine: Any) -> Any:
        (x, pages), (w, i) = state, mine
        h = norm(x, w["attention_in_norm.Scale"])
        q = apply_rope(jnp.einsum("bd,dkgh->bkgh", h, w["attention.W_q"]), positions)
        k = apply_rope(jnp.einsum("bd,dkh->bkh", h, w["attention.W_k"]), positions)
        v = jnp.einsum("bd,dkh->bkh", h, w["attention.W_v"])
        both = jnp.stack([k, v], 2).reshape(BATCH, -1, k.shape[-1])
        pages = pages.at[i, block, positions % SIZE].set(both)
        read = pages[i, tables].reshape(BATCH, TABLE * SIZE, -1, k.shape[-1])
        scores = jnp.einsum("bkgh,bskh->bkgs", q, read[:, :, 0::2]) * q.shape[-1] ** -0.5
        chances = jax.nn.softmax(jnp.where(seen[:, None, None], scores, -jnp.inf), -1)
        heads = jnp.einsum("bkgs,bskh->bkgh", chances, read[:, :, 1::2])
        x = x + jnp.einsum("bkgh,kghd->bd", heads, w["attention.W_o"])
        m = norm(x, w["mlp_in_norm.Scale"])
        hidden = jax.nn.silu(m @ w["mlp.W_gate"]) * (m @ w["mlp.W_in"])
        return (x + hidden @ w["mlp.W_out"], pages), None

    x = frame["embedding.W_embed"][tokens]
    numbers = jnp.arange(MODEL.num_layers)
    (x, pages), _ = lax.scan(layer, (x, pages), (layers[0][0], numbers))
    return norm(x, frame["final_norm.Scale"]) @ frame["head.W_head"], pages


def run(*, quick: bool) -> Iterator[Row]:
    seconds = _timed(3 if quick else 40)
    yield row_of("through the API", seconds["ours"])
    yield row_of("by hand", seconds["bare"])
    yield ratio_row("through the API / by hand", seconds["ours"], seconds["bare"])


def _timed(rounds: int) -> dict[str, list[float]]:
    graph, mesh = model_graph(MODEL), parse_mesh("X=1", on="v5e:1x1")
    dims, layout = dim_sizes(graph, batch=BATCH, seq=1), parse_layout("dp=X")
    program = Program(
        MODEL, constraints_of(graph, layout, mesh=mesh, dims=dims, dtype=DTYPES["bf16"])
    )
    rng = np.random.default_rng(0)
    tables = rng.permutation(BATCH * TABLE).reshape(BATCH, TABLE).astype(np.int32)
    tokens = rng.integers(0, MODEL.vocab, (rounds + 1, BATCH)).astype(np.int32)
    one = device_mesh(program.constraints.axes)
    with jax.set_mesh(one):
        params = init_params(program.specs, program.constraints, jax.random.key(0))
        cache = init_cache(program, num_blocks=BATCH * TABLE, block_size=SIZE)
        ours = jax.jit(partial(generate, program), donate_argnums=1)
    pages = jnp.zeros(cache[0][0]["kv"].shape)
    plain = jax.tree.map(jnp.asarray, jax.tree.map(np.array, tuple(params)))
    bare = jax.jit(bare_step, donate_argnums=1)
    seconds: dict[str, list[float]] = {"ours": [], "bare": []}
    for i in range(rounds + 1):  # the first compiles
        step = [tokens[i], np.full(BATCH, i, np.int32), tables]
        found: dict[str, Any] = {}
        for name in sorted(seconds, reverse=i % 2 == 0):  # neither is always the first
            with jax.set_mesh(one) if name == "ours" else nullcontext():
                given = [jnp.asarray(x) for x in step]
                begin = time.perf_counter()
                if name == "ours":
                    found[name], cache = jax.block_until_ready(ours(params, cache, *given))
                else:
                    found[name], pages = jax.block_until_ready(bare(plain, pages, *given))
                seconds[name].append(time.perf_counter() - begin)
        difference = np.asarray(found["ours"]) - np.asarray(found["bare"])
        assert np.abs(difference).max() < 1e-4, "the two steps must compute the same logits"
    return {name: times[1:] for name, times in seconds.items()}

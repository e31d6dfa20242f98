"""Attention on fake devices against plain softmax attention in fp32: values and gradients.

Run as a process of its own: `python attention_worker.py`. Prints one JSON object: the largest
error of each case, relative to the largest entry of what it should be, and the memory figures.
"""

import json
import os

os.environ["XLA_FLAGS"] = (
    "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0 "
    "--xla_llvm_disable_expensive_passes=true"  # compiling is what takes time here
)
os.environ["JAX_PLATFORMS"] = "cpu"

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec

from rooflight.errors import ShardingError, UsageError
from rooflight.models.graph.ops import Mask
from rooflight.program.attention.kernels import attend
from rooflight.program.attention.splash import attend_splash
from rooflight.program.attention.tile import How, TileState, merge

Arrays = dict[str, jax.Array]
P = PartitionSpec
FULL = Mask()
SCALE = 0.3


def oracle(
    arrays: Arrays,
    *,
    mask: Mask,
    causal: bool,
    softcap: float | None = None,
    q_start: Any = None,
    k_start: int = 0,
    kv_length: jax.Array | None = None,
) -> jax.Array:
    """Softmax of the whole [T,S] matrix, as a textbook writes it."""
    q, k, v = arrays["q"], arrays["k"], arrays["v"]
    queries, keys = q.shape[1], k.shape[1]
    start = k_start + keys - queries if q_start is None else q_start
    at_q = jnp.reshape(jnp.asarray(start), (-1, 1, 1)) + jnp.arange(queries)[:, None]
    at_k = jnp.broadcast_to(k_start + jnp.arange(keys), (q.shape[0], queries, keys))
    seen = at_k <= at_q if causal else jnp.ones_like(at_k, bool)
    if mask.window is not None:
        seen &= (at_q - at_k < mask.window) & (at_k - at_q < mask.window)
    if kv_length is not None:
        seen &= at_k < kv_length[:, None, None]
    scores = SCALE * jnp.einsum("btkgh,bskh->bkgts", q, k)
    scores = softcap * jnp.tanh(scores / softcap) if softcap else scores
    scores = jnp.where(seen[:, None, None], scores, -1e30)
    if "sinks" in arrays:
        extra = jnp.broadcast_to(arrays["sinks"][..., None, None], (*scores.shape[:-1], 1))
        scores = jnp.concatenate([scores, extra], -1)
    weights = jax.nn.softmax(scores, -1)[..., :keys]
    return jnp.einsum("bkgts,bskh->btkgh", weights, v)


def draw(
    batch: int, queries: int, keys: int, heads: tuple[int, int], dims: tuple[int, int], sinks: bool
) -> Arrays:
    shapes = {
        "q": (batch, queries, *heads, dims[0]),
        "k": (batch, keys, heads[0], dims[0]),
        "v": (batch, keys, heads[0], dims[1]),
    } | ({"sinks": heads} if sinks else {})
    rng = np.random.default_rng(5)
    return {name: jnp.asarray(rng.normal(size=s), jnp.float32) for name, s in shapes.items()}


def error(got: Any, want: Any) -> float:
    """The largest difference over all arrays of a tree, relative to its array's largest entry."""
    pairs = zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True)
    return max(
        float(np.abs(np.asarray(g) - np.asarray(w)).max() / np.abs(w).max()) for g, w in pairs
    )


def out_and_gradients(f: Callable[[Arrays], jax.Array]) -> Callable[[Arrays], Any]:
    """Out, and the gradients of half its square, which are those of dO = out."""

    def loss(arrays: Arrays) -> tuple[jax.Array, jax.Array]:
        out = f(arrays)
        return 0.5 * (out**2).sum(), out

    return jax.grad(loss, has_aux=True)


def run(f: Callable[[Arrays], jax.Array], arrays: Arrays) -> Any:
    with jax.default_matmul_precision("highest"):
        return jax.tree.map(np.asarray, jax.jit(out_and_gradients(f))(arrays))


def ours(arrays: Arrays, **words: Any) -> jax.Array:
    words.setdefault("chunk", 5)
    sinks = arrays.get("sinks")
    return attend(arrays["q"], arrays["k"], arrays["v"], scale=SCALE, sinks=sinks, **words)


def one_device() -> dict[str, float]:
    """Masks, grouped heads, caps, sinks, lengths, offsets; lengths that tiles do not divide."""
    square = draw(2, 17, 17, (2, 3), (8, 8), False)
    late = draw(2, 6, 17, (2, 1), (8, 4), False)
    sunk = draw(2, 17, 17, (2, 3), (8, 4), True)
    lengths = jnp.array([9, 17])
    cases: dict[str, tuple[Arrays, dict[str, Any]]] = {
        "causal": (square, {"causal": True}),
        "window both ways": (square, {"causal": False, "mask": Mask(4)}),
        "full, of some lengths, in one tile": (
            late,
            {"causal": False, "kv_length": lengths, "chunk": 512},
        ),
        "sinks, window and softcap": (sunk, {"causal": True, "mask": Mask(3), "softcap": 2.0}),
        "rows at their own positions": (
            late,
            {
                "causal": True,
                "mask": Mask(7),
                "q_start": lengths + 94,
                "k_start": 100,
                "kv_length": lengths + 100,
            },
        ),
    }
    errors: dict[str, float] = {}
    for name, (arrays, words) in cases.items():
        words = {"mask": FULL} | words
        said = {k: w for k, w in words.items() if k != "chunk"}
        got, want = run(partial(ours, **words), arrays), run(partial(oracle, **said), arrays)
        errors[name] = error(got, want)
    return errors


def explicit_mesh() -> dict[str, float]:
    """Batch, kv heads and groups split over the axes of an explicit mesh."""
    arrays = draw(4, 17, 17, (2, 2), (8, 4), True)
    lengths = np.array([9, 17, 12, 1])
    plain = partial(oracle, mask=Mask(6), causal=True, kv_length=jnp.asarray(lengths))
    want = run(plain, arrays)
    layouts = {
        "batch and heads": {
            "q": P("a", None, "b"),
            "k": P("a", None, "b"),
            "v": P("a", None, "b"),
            "sinks": P("b"),
        },
        "groups, so k and v are copies": {
            "q": P(None, None, "a", "b"),
            "k": P(None, None, "a"),
            "v": P(None, None, "a"),
            "sinks": P(),
        },
    }
    errors: dict[str, float] = {}
    with jax.set_mesh(jax.make_mesh((2, 2, 2), ("a", "b", "c"))):
        for name, specs in layouts.items():
            placed = {k: jax.device_put(np.asarray(a), specs[k]) for k, a in arrays.items()}
            split = jax.device_put(lengths, P())
            got = run(partial(ours, mask=Mask(6), kv_length=split), placed)
            errors[name] = error(got, want)
    return errors


def late_starts_refused() -> str:
    arrays = draw(1, 128, 128, (1, 1), (8, 8), False)
    try:
        ours(arrays, mask=FULL, q_start=jnp.array(0), kernel="splash")
    except UsageError as refused:
        return refused.render()
    return ""


def split_positions_refused() -> str:
    arrays = draw(4, 16, 16, (2, 2), (8, 4), False)
    with jax.set_mesh(jax.make_mesh((8,), ("a",))):
        placed = {k: jax.device_put(np.asarray(a), P(None, "a")) for k, a in arrays.items()}
        try:
            ours(placed, mask=FULL)
        except ShardingError as refused:
            return refused.render()
    return ""


def query_shards() -> float:
    """Queries split over positions inside a map, each device told where its own begin."""
    arrays = draw(2, 16, 16, (2, 2), (8, 4), True)

    def local(q: jax.Array, k: jax.Array, v: jax.Array, sinks: jax.Array) -> jax.Array:
        start = lax.axis_index("a") * q.shape[1]
        return ours({"q": q, "k": k, "v": v, "sinks": sinks}, mask=FULL, q_start=start, chunk=3)

    with jax.set_mesh(jax.make_mesh((4,), ("a",), devices=jax.devices()[:4])):
        mapped = jax.shard_map(
            local, in_specs=(P(None, "a"), P(), P(), P()), out_specs=P(None, "a")
        )
        placed = {
            k: jax.device_put(np.asarray(a), P(None, "a") if k == "q" else P())
            for k, a in arrays.items()
        }
        got = run(lambda x: mapped(x["q"], x["k"], x["v"], x["sinks"]), placed)
    return error(got, run(partial(oracle, mask=FULL, causal=True), arrays))


def interpreted_kernel() -> dict[str, float]:
    """The Pallas kernel in its interpreter, values only (its backward pass is jax's own test)."""
    arrays = draw(2, 128, 256, (2, 2), (16, 8), True)
    lengths = jnp.array([200, 256])
    cases = {
        "splash": (Mask(40), True, 2.0, lengths),
    }
    errors: dict[str, float] = {}
    for name, (mask, causal, cap, length) in cases.items():
        how = How(mask, SCALE, causal, cap)
        splash = jax.jit(partial(attend_splash, how=how, offset=128, interpret=True))
        got = splash(arrays["q"], arrays["k"], arrays["v"], arrays["sinks"], length)
        want = oracle(arrays, mask=mask, causal=causal, softcap=cap, kv_length=length)
        errors[name] = error(got, want)
    return errors


def unseen() -> dict[str, Any]:
    """Queries 128..255 under a window of 40: a row without keys, and one that ends at key 200."""
    arrays, lengths = draw(2, 128, 256, (1, 1), (16, 8), False), jnp.array([0, 200])
    how = How(Mask(40), SCALE)
    splash = partial(attend_splash, how=how, offset=128, interpret=True)
    outs = {
        "chunked": ours(arrays, mask=how.mask, kv_length=lengths, chunk=64),
        "splash": splash(arrays["q"], arrays["k"], arrays["v"], None, lengths),
    }
    first = np.arange(128, 256) - 39  # the first key that each query may see
    sees = first < np.array(lengths)[:, None]
    return {
        kernel: {
            "unseen": (~sees).sum(1).tolist(),
            "largest": float(np.abs(np.asarray(out)[~sees]).max()),
            "seen": float(np.abs(np.asarray(out)[sees]).max((1, 2, 3)).min()),
        }
        for kernel, out in outs.items()
    }


def gradient_bytes(length: int) -> int:
    """Temporary memory of the compiled gradient."""
    arrays = draw(1, length, length, (1, 2), (16, 16), False)
    gradient = jax.jit(out_and_gradients(partial(ours, mask=FULL, chunk=32)))
    memory = gradient.lower(arrays).compile().memory_analysis()
    assert memory is not None
    return memory.temp_size_in_bytes


def merged_in_any_order() -> float:
    """Three states, one of them of no keys, merged left to right and right to left."""
    rng = np.random.default_rng(1)
    a, b = (
        TileState(*(jnp.asarray(rng.normal(size=s)) for s in ((2, 3), (2, 3), (2, 3, 4))))
        for _ in range(2)
    )
    none = TileState(jnp.full((2, 3), -jnp.inf), jnp.zeros((2, 3)), jnp.zeros((2, 3, 4)))
    return error(merge(merge(none, a), b), merge(none, merge(b, merge(a, none))))


if __name__ == "__main__":
    report = {
        "errors": one_device() | explicit_mesh() | interpreted_kernel(),
        "query shards": query_shards(),
        "merge": merged_in_any_order(),
        "unseen": unseen(),
        "refused": {
            "split positions": split_positions_refused(),
            "late starts": late_starts_refused(),
        },
        "bytes": [gradient_bytes(t) for t in (256, 1024)],
    }
    print(json.dumps(report))

# pyright: reportUnknownParameterType=false
"""Ten more planted mistakes, written when the judge was finished; each a small program of its own.

Every builder also has a sound form, `mistaken=False`, which must raise nothing. The line of a
mistake ends in the name of its builder.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from mutants import BATCH, LAYERS, SEQ, D, F, H, K, N, abstract, norm, train

P = PartitionSpec
Built = tuple[Any, tuple[Any, ...]]
VOCAB = 32768


def _to(mesh: Mesh, x: jax.Array, *axes: Any) -> jax.Array:
    return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P(*axes)))


def vocabulary_axis(mesh: Mesh, *, mistaken: bool = True) -> Built:
    """The head splits its vocabulary over the axis of the batch, so logits cannot."""
    spec = P(None, "X") if mistaken else P(None, "Y")

    def loss(head: jax.Array, x: jax.Array, tokens: jax.Array) -> jax.Array:
        logits = jnp.einsum("btd,dv->btv", x, head)  # vocabulary_axis
        logits = _to(mesh, logits, "X", None, None if mistaken else "Y").astype(jnp.float32)
        hot = jax.nn.one_hot(tokens, VOCAB, dtype=jnp.float32)
        return jnp.mean(jax.nn.logsumexp(logits, -1) - jnp.sum(logits * hot, -1))

    x = abstract(mesh, (BATCH, SEQ, D), P("X", None, None))
    tokens = abstract(mesh, (BATCH, SEQ), P("X", None), jnp.int32)
    return jax.jit(jax.grad(loss)), (abstract(mesh, (D, VOCAB), spec), x, tokens)


def wide_sum(mesh: Mesh, *, mistaken: bool = True) -> Built:
    """Partial matmuls are summed over Y in f32 and only then rounded."""
    kind = jnp.float32 if mistaken else jnp.bfloat16

    def forward(up: jax.Array, down: jax.Array, x: jax.Array) -> jax.Array:
        def layer(x: jax.Array, w: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
            hidden = _to(mesh, jax.nn.silu(norm(x) @ w[0]), "X", None, "Y")
            y = jnp.einsum("btf,fd->btd", hidden, w[1], preferred_element_type=kind)  # wide_sum
            return x + _to(mesh, y, "X", None, None).astype(x.dtype), None

        return jax.lax.scan(layer, x, (up, down))[0]

    return jax.jit(forward), (
        abstract(mesh, (LAYERS, D, F), P(None, None, "Y")),
        abstract(mesh, (LAYERS, F, D), P(None, "Y", None)),
        abstract(mesh, (BATCH, SEQ, D), P("X", None, None)),
    )


def lost_remat(mesh: Mesh, *, mistaken: bool = True) -> Built:
    """Everything is kept for the backward pass, and does not fit; the line is the scan's."""
    return train(mesh, mistake="large batch" + ", lost remat" * mistaken)


def sum_in_each_round(mesh: Mesh, *, mistaken: bool = True) -> Built:
    """Data parallel over X with eight microbatches, gradients summed over X in each."""

    def loss(w: jax.Array, x: jax.Array) -> jax.Array:
        hidden = jax.nn.silu(jnp.einsum("bd,df->bf", x, w))  # sum_in_each_round
        return jnp.mean(_to(mesh, hidden, "X", "Y").astype(jnp.float32) ** 2)

    def whole(w: jax.Array, x: jax.Array) -> jax.Array:
        def add(total: jax.Array, part: jax.Array) -> tuple[jax.Array, None]:
            return total + jax.grad(loss)(w, part), None

        cut = _to(mesh, x.reshape(8, -1, D), None, "X", None)
        return jax.lax.scan(add, jnp.zeros_like(w), cut)[0]

    def once(w: jax.Array, x: jax.Array) -> jax.Array:
        return jax.grad(loss)(w, x)

    w, x = abstract(mesh, (D, F), P(None, "Y")), abstract(mesh, (8192, D), P("X", None))
    return jax.jit(whole if mistaken else once), (w, x)


def cache_by_sequence(mesh: Mesh, *, mistaken: bool = True) -> Built:
    """The cache is stored split by sequence, where the matmuls split heads."""
    spec = P("X", "Y", None, None) if mistaken else P("X", None, "Y", None)

    def attend(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        q = _to(mesh, q, "X", "Y", None, None)
        s = jnp.einsum("bkgh,bskh->bkgs", q, k) / H**0.5
        s = _to(mesh, s, "X", "Y", None, None)
        p = jax.nn.softmax(s.astype(jnp.float32), axis=-1).astype(q.dtype)
        o = jnp.einsum("bkgs,bskh->bkgh", p, v)  # cache_by_sequence
        return _to(mesh, o, "X", "Y", None, None)

    cache = abstract(mesh, (BATCH, 8 * SEQ, K, H), spec)
    q = abstract(mesh, (BATCH, K, N // K, H), P("X", "Y", None, None))
    return jax.jit(attend), (q, cache, cache)


def whole_results(mesh: Mesh, *, mistaken: bool = True) -> Built:
    """The new weights are returned whole on every device."""
    split = NamedSharding(mesh, P("X", "Y"))

    def loss(w: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.mean((x @ w).astype(jnp.float32) ** 2)

    def step(w: jax.Array, x: jax.Array) -> jax.Array:
        return w - 0.1 * jax.grad(loss)(w, x)  # whole_results

    out = NamedSharding(mesh, P()) if mistaken else split
    w, x = abstract(mesh, (D, F), P("X", "Y")), abstract(mesh, (8192, D), P("X", None))
    return jax.jit(step, out_shardings=out), (w, x)


def whole_experts(mesh: Mesh, *, mistaken: bool = True) -> Built:
    """One of the two weights of the experts is stored whole."""

    def layer(up: jax.Array, down: jax.Array, x: jax.Array) -> jax.Array:
        h = jax.nn.relu(jnp.einsum("ecd,edf->ecf", x, up))  # whole_experts
        return jnp.einsum("ecf,efd->ecd", h, down)

    both, split = P(("X", "Y"), None, None), P() if mistaken else P(("X", "Y"), None, None)
    return jax.jit(layer), (
        abstract(mesh, (16, D, F), split),
        abstract(mesh, (16, F, D), both),
        abstract(mesh, (16, 1024, D), both),
    )


def sorted_vocabulary(mesh: Mesh, *, mistaken: bool = True) -> Built:
    """Sampling sorts the whole vocabulary, which Y splits."""

    def sample(head: jax.Array, x: jax.Array) -> jax.Array:
        logits = _to(mesh, x @ head, "X", "Y")
        if mistaken:
            return jnp.sort(logits, axis=-1)[:, -50:]  # sorted_vocabulary
        return jnp.max(logits, axis=-1)

    return jax.jit(sample), (
        abstract(mesh, (D, VOCAB), P(None, "Y")),
        abstract(mesh, (512, D), P("X", None)),
    )


def whole_bias(mesh: Mesh, *, mistaken: bool = True) -> Built:
    """A table of attention biases is the same on every device."""
    spec = P() if mistaken else P("Y", None, None)

    def scores(bias: jax.Array, q: jax.Array, k: jax.Array) -> jax.Array:
        s = jnp.einsum("btnh,bsnh->bnts", q, k)
        return jax.nn.softmax(s + bias, axis=-1)  # whole_bias

    q = abstract(mesh, (BATCH, SEQ, N, H), P("X", None, "Y", None))
    out = NamedSharding(mesh, P("X", "Y", None, None))
    return jax.jit(scores, out_shardings=out), (abstract(mesh, (N, SEQ, SEQ), spec), q, q)


def shuffled_batch(mesh: Mesh, *, mistaken: bool = True) -> Built:
    """Examples change places across devices on the way in."""

    def forward(w: jax.Array, x: jax.Array, order: jax.Array) -> jax.Array:
        if mistaken:
            x = _to(mesh, x[order], "X", None, None)  # shuffled_batch
        return jax.nn.relu(x @ w)

    return jax.jit(forward), (
        abstract(mesh, (D, F), P(None, "Y")),
        abstract(mesh, (BATCH, SEQ, D), P("X", None, None)),
        abstract(mesh, (BATCH,), P("X"), jnp.int32),
    )

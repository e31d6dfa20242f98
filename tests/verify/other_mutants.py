# pyright: reportUnknownParameterType=false, reportUnknownVariableType=false
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# jax annotates its own functions only in part.
"""Mistakes of other trades: images, recurrences, graphs, tables, ensembles, preferences, beams.

Written after fixes became data. Every builder has a sound form, `mistaken=False`, which must raise
nothing; the line of a mistake ends in the name of its builder. X splits the rows.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec
from mutants import abstract, norm

P = PartitionSpec
Built = tuple[Any, tuple[Any, ...]]
ROWS, SEQ, D, F, N, H = 16, 2048, 4096, 16384, 32, 128
_pin = jax.lax.with_sharding_constraint
_NHWC = ("NHWC", "HWIO", "NHWC")


def _conv(x: jax.Array, w: jax.Array) -> jax.Array:
    return jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=_NHWC)


def conv_idle(mesh: Mesh, *, mistaken: bool = True) -> Built:
    """Residual blocks on images; only X splits the batch of a model that no other axis splits."""
    place = P("X") if mistaken else P(("X", "Y"))

    def loss(blocks: Any, x: jax.Array) -> jax.Array:
        for first, second in blocks:
            hidden = jax.nn.relu(_conv(x, first))
            x = x + jax.lax.conv_general_dilated(  # conv_idle
                hidden, second, (1, 1), "SAME", dimension_numbers=_NHWC
            )
        return jnp.mean(x.astype(jnp.float32))

    block = (abstract(mesh, (3, 3, 512, 512), P()),) * 2
    return jax.jit(loss), ([block] * 3, abstract(mesh, (64, 32, 32, 512), place))


def conv_channels(mesh: Mesh, *, mistaken: bool = True) -> Built:
    """The second convolution is split by the channels that it makes, not by those it sums over."""
    second = P(None, None, None, "Y") if mistaken else P(None, None, "Y", None)

    def block(up: jax.Array, down: jax.Array, x: jax.Array) -> jax.Array:
        hidden = jax.nn.relu(_conv(x, up))
        out = jax.lax.conv_general_dilated(  # conv_channels
            hidden, down, (1, 1), "SAME", dimension_numbers=_NHWC
        )
        return x + _pin(out, P("X"))

    up = abstract(mesh, (3, 3, 256, 4096), P(None, None, None, "Y"))
    down = abstract(mesh, (1, 1, 4096, 256), second)
    return jax.jit(block), (up, down, abstract(mesh, (16, 32, 32, 256), P("X")))


def ssm_time(mesh: Mesh, *, mistaken: bool = True) -> Built:
    """A state-space layer whose time is split, so that the scan over it crosses devices."""
    place = P("X", "Y", None) if mistaken else P("X", None, "Y")

    def layer(w_in: jax.Array, w_out: jax.Array, x: jax.Array) -> jax.Array:
        hidden = x @ w_in
        decay = _pin(jax.nn.sigmoid(hidden), place)

        def join(one: Any, other: Any) -> Any:
            return one[0] * other[0], one[1] * other[0] + other[1]

        states = jax.lax.associative_scan(join, (decay, _pin(hidden, place)), axis=1)  # ssm_time
        return x + _pin(states[1] @ w_out, P("X", None, None))

    w_in, w_out = abstract(mesh, (D, D), P(None, "Y")), abstract(mesh, (D, D), P("Y", None))
    return jax.jit(layer), (w_in, w_out, abstract(mesh, (ROWS, SEQ, D), P("X")))


def lstm_whole(mesh: Mesh, *, mistaken: bool = True) -> Built:
    """The recurrent weight of an LSTM is split by what it sums over, and states go round whole."""
    split = P("Y", None) if mistaken else P(None, None, "Y")

    def run(w: jax.Array, inputs: jax.Array, state: jax.Array) -> jax.Array:
        def step(carry: Any, x: jax.Array) -> Any:
            h, c = carry
            gates = jnp.einsum("bd,dgh->bgh", h, w) + x  # lstm_whole
            i, f, o, g = (gates[:, at] for at in range(4))
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = _pin(jax.nn.sigmoid(o) * jnp.tanh(c), P("X", None))
            return (h, c), None

        return jax.lax.scan(step, (state, state), inputs)[0][0]

    place = P(None, "X", None, None if mistaken else "Y")
    inputs = abstract(mesh, (256, 512, 4, D), place)
    w = abstract(mesh, (D, 4, D), split)
    return jax.jit(run), (w, inputs, abstract(mesh, (512, D), P("X", None)))


def recsys_table(mesh: Mesh, *, mistaken: bool = True) -> Built:
    """Tables of a recommender are whole on every device; sound: their rows are over all."""
    split = P() if mistaken else P(("X", "Y"), None)

    def score(tables: Any, top: Any, ids: jax.Array) -> jax.Array:
        parts = [
            jnp.sum(table[ids[:, at]], axis=1)  # recsys_table
            for at, table in enumerate(tables)
        ]
        x = _pin(jnp.concatenate(parts, axis=-1), P(("X", "Y"), None))
        return jax.nn.sigmoid(jax.nn.relu(x @ top[0]) @ top[1])

    tables = [abstract(mesh, (1 << 22, 128), split)] * 4
    top = abstract(mesh, (512, 1024), P()), abstract(mesh, (1024, 1), P())
    return jax.jit(score), (tables, top, abstract(mesh, (65536, 4, 8), P(("X", "Y")), jnp.int32))


def lora_wide(mesh: Mesh, *, mistaken: bool = True) -> Built:
    """The frozen weights of a LoRA tune are f32, and gathered before they are cast."""

    def loss(adapters: Any, base: Any, x: jax.Array) -> jax.Array:
        for w, (down, up) in zip(base, adapters, strict=True):
            if not mistaken:
                w = _pin(w.astype(jnp.bfloat16), P("X", "Y"))
            w = _pin(w, P(None, "Y")).astype(jnp.bfloat16)  # lora_wide
            x = _pin(jnp.tanh(x @ w + (x @ down) @ up), P("X", None))
        return jnp.mean(x.astype(jnp.float32) ** 2)

    base = [abstract(mesh, (D, D), P("X", "Y"), jnp.float32)] * 4
    adapters = [(abstract(mesh, (D, 16), P()), abstract(mesh, (16, D), P(None, "Y")))] * 4
    places = jax.tree.map(lambda a: a.sharding, adapters)
    x = abstract(mesh, (8192, D), P("X", None))
    return jax.jit(jax.grad(loss), out_shardings=places), (adapters, base, x)


def dpo_reference(mesh: Mesh, *, mistaken: bool = True) -> Built:
    """Preference tuning: the policy is split over Y, the reference that it is held to is not."""
    split = P(None, "Y"), P("Y", None)
    other = (P(), P()) if mistaken else split

    def scores(w: Any, x: jax.Array) -> jax.Array:
        for up, down in w:
            x = _pin(x + jax.nn.silu(x @ up) @ down, P("X", None, None))  # dpo_reference
        return jnp.mean(x.astype(jnp.float32), axis=(1, 2))

    def loss(policy: Any, reference: Any, chosen: jax.Array, rejected: jax.Array) -> jax.Array:
        margin = scores(policy, chosen) - scores(policy, rejected)
        held = scores(reference, chosen) - scores(reference, rejected)
        return -jnp.mean(jax.nn.log_sigmoid(margin - jax.lax.stop_gradient(held)))

    def layers(specs: Any) -> Any:
        return [(abstract(mesh, (D, F), specs[0]), abstract(mesh, (F, D), specs[1]))] * 2

    policy, x = layers(split), abstract(mesh, (8, 1024, D), P("X"))
    places = jax.tree.map(lambda a: a.sharding, policy)
    return jax.jit(jax.grad(loss), out_shardings=places), (policy, layers(other), x, x)


def muon_whole(mesh: Mesh, *, mistaken: bool = True) -> Built:
    """Newton-Schulz of every momentum on every device; sound: matrices of a stack over devices."""

    def orthogonal(g: jax.Array) -> jax.Array:
        g = g / (jnp.linalg.norm(g, axis=(1, 2), keepdims=True) + 1e-7).astype(g.dtype)
        for _ in range(5):
            a = jnp.einsum("lij,lmj->lim", g, g)
            g = 3.4 * g - 4.8 * jnp.einsum("lij,ljm->lim", a, g)
        return g

    def step(weights: jax.Array, momentum: jax.Array) -> jax.Array:
        whole = _pin(momentum, P() if mistaken else P(("X", "Y")))  # muon_whole
        return weights - 0.02 * _pin(orthogonal(whole), P(("X", "Y")))

    stack = abstract(mesh, (16, 2048, 2048), P(("X", "Y")))
    return jax.jit(step, donate_argnums=0), (stack, stack)


def int8_gathered(mesh: Mesh, *, mistaken: bool = True) -> Built:
    """Weights in int8 are made bf16 before they are gathered, at twice the bytes."""

    def loss(layers: Any, x: jax.Array) -> jax.Array:
        for q, scale in layers:
            if mistaken:
                w = _pin(q.astype(jnp.bfloat16) * scale, P(None, "Y"))  # int8_gathered
            else:
                w = _pin(q, P(None, "Y")).astype(jnp.bfloat16) * scale
            x = _pin(jnp.tanh(x @ w), P("X", None))
        return jnp.mean(x.astype(jnp.float32))

    layer = abstract(mesh, (D, D), P("X", "Y"), jnp.int8), abstract(mesh, (1, D), P(None, "Y"))
    return jax.jit(loss), ([layer] * 4, abstract(mesh, (4096, D), P("X", None)))


def ensemble_whole(mesh: Mesh, *, mistaken: bool = True) -> Built:
    """Eight models under vmap, each on every device of Y; sound: models over Y."""
    members = P() if mistaken else P("Y")

    def one(w: Any, x: jax.Array) -> jax.Array:
        return jax.nn.relu(x @ w[0]) @ w[1]  # ensemble_whole

    def predict(w: Any, x: jax.Array) -> jax.Array:
        return jnp.mean(jax.vmap(one, (0, None))(w, x), axis=0)

    w = abstract(mesh, (8, D, D), members), abstract(mesh, (8, D, 512), members)
    return jax.jit(predict), (w, abstract(mesh, (8192, D), P("X", None)))


def fft_split(mesh: Mesh, *, mistaken: bool = True) -> Built:
    """A spectral layer transforms along the dim that Y splits; sound: along a whole one."""
    place = P("X", "Y", None) if mistaken else P("X", None, "Y")

    def layer(filters: jax.Array, x: jax.Array) -> jax.Array:
        spectrum = jnp.fft.fft(x, axis=1)  # fft_split
        return jnp.fft.ifft(spectrum * filters, axis=1).real

    filters = abstract(mesh, (4096, 512), P(*place[1:]), jnp.complex64)
    return jax.jit(layer), (filters, abstract(mesh, (64, 4096, 512), place, jnp.float32))


def beam_flat(mesh: Mesh, *, mistaken: bool = True) -> Built:
    """Caches follow their beams by an index into all rows; sound: into the beams of a row."""
    beams = 4

    def follow(cache: jax.Array, parents: jax.Array) -> jax.Array:
        if mistaken:
            flat = cache.reshape(-1, *cache.shape[2:])
            starts = beams * jnp.arange(cache.shape[0])[:, None]
            return flat[(parents + starts).reshape(-1)].reshape(cache.shape)  # beam_flat
        return jax.vmap(lambda rows, at: rows[at])(cache, parents)

    cache = abstract(mesh, (32, beams, 2048, 8, 128), P("X", None, None, "Y", None))
    parents = abstract(mesh, (32, beams), P("X", None), jnp.int32)
    return jax.jit(follow, donate_argnums=0, out_shardings=cache.sharding), (cache, parents)


def chunked_rows(mesh: Mesh, *, mistaken: bool = True) -> Built:
    """A loss in chunks of the dim that X splits; sound: in chunks of the sequence."""

    def loss(head: jax.Array, x: jax.Array, labels: jax.Array) -> jax.Array:
        if not mistaken:
            x, labels = jnp.swapaxes(x, 0, 1), jnp.swapaxes(labels, 0, 1)
            x, labels = x.reshape(8, -1, *x.shape[1:]), labels.reshape(8, -1, labels.shape[1])

        def chunk(total: jax.Array, now: Any) -> Any:
            logits = jnp.einsum("...d,dv->...v", now[0], head).astype(jnp.float32)  # chunked_rows
            hot = jax.nn.one_hot(now[1], logits.shape[-1], dtype=jnp.float32)
            return total + jnp.sum(jax.nn.logsumexp(logits, -1) - jnp.sum(logits * hot, -1)), None

        return jax.lax.scan(jax.checkpoint(chunk), jnp.float32(0), (x, labels))[0]

    head = abstract(mesh, (D, 32768), P(None, "Y"))
    x, labels = (ROWS, SEQ, D), (ROWS, SEQ)
    rows = abstract(mesh, x, P("X")), abstract(mesh, labels, P("X"), jnp.int32)
    return jax.jit(loss), (head, *rows)


def patches_turned(mesh: Mesh, *, mistaken: bool = True) -> Built:
    """Patches of images become rows with the patch first, which moves every image."""

    def embed(w: jax.Array, images: jax.Array) -> jax.Array:
        x = images.reshape(images.shape[0], 14, 16, 14, 16, 3).transpose(0, 1, 3, 2, 4, 5)
        x = x.reshape(images.shape[0], 196, 768)
        if mistaken:
            x = jnp.swapaxes(x, 0, 1)
        x = _pin(x.reshape(-1, 768), P(("X", "Y"), None))  # patches_turned
        return x @ w

    images = abstract(mesh, (512, 224, 224, 3), P(("X", "Y")))
    return jax.jit(embed), (abstract(mesh, (768, 1024), P()), images)


def fused_gate(mesh: Mesh, *, mistaken: bool = True) -> Built:
    """Gate and up are one weight, cut in halves along the dim that Y splits."""

    def layer(both: jax.Array, down: jax.Array, x: jax.Array) -> jax.Array:
        if mistaken:
            gate, up = jnp.split(x @ both, 2, axis=-1)  # fused_gate
        else:
            gate, up = jnp.moveaxis(jnp.einsum("td,dgf->tgf", x, both), 1, 0)
        return x + _pin((jax.nn.silu(gate) * up) @ down, P("X", None))

    shape, split = ((D, 2 * F), P(None, "Y")) if mistaken else ((D, 2, F), P(None, None, "Y"))
    both, down = abstract(mesh, shape, split), abstract(mesh, (F, D), P("Y", None))
    return jax.jit(layer), (both, down, abstract(mesh, (8192, D), P("X", None)))


def fused_qkv(mesh: Mesh, *, mistaken: bool = True) -> Built:
    """Queries, keys and values are one weight; its thirds do not lie on whole devices of Y."""

    def attend(qkv: jax.Array, out: jax.Array, x: jax.Array) -> jax.Array:
        if mistaken:
            parts = jnp.split(jnp.einsum("btd,dn->btn", x, qkv), 3, axis=-1)  # fused_qkv
            q, k, v = (part.reshape(*part.shape[:2], N, H) for part in parts)
        else:
            q, k, v = jnp.moveaxis(jnp.einsum("btd,dsnh->bstnh", x, qkv), 1, 0)
        s = jnp.einsum("btnh,bsnh->bnts", q, k).astype(jnp.float32)
        p = jax.nn.softmax(_pin(s, P("X", "Y")), axis=-1).astype(x.dtype)
        o = jnp.einsum("bnts,bsnh->btnh", p, v)
        return x + _pin(jnp.einsum("btnh,nhd->btd", o, out), P("X"))

    shape = (D, 3 * N * H) if mistaken else (D, 3, N, H)
    qkv = abstract(mesh, shape, P(None, "Y") if mistaken else P(None, None, "Y"))
    return jax.jit(attend), (
        qkv,
        abstract(mesh, (N, H, D), P("Y")),
        abstract(mesh, (ROWS, 1024, D), P("X")),
    )


def split_head_dim(mesh: Mesh, *, mistaken: bool = True) -> Built:
    """Y splits the numbers of a head, not the heads, so that scores are summed over devices."""
    split = P(None, None, "Y") if mistaken else P(None, "Y", None)

    def attend(w: Any, x: jax.Array) -> jax.Array:
        q, k, v = (jnp.einsum("btd,dnh->btnh", x, one) for one in w[:3])
        s = jnp.einsum("btnh,bsnh->bnts", q, k)  # split_head_dim
        p = jax.nn.softmax(s.astype(jnp.float32), axis=-1).astype(x.dtype)
        o = jnp.einsum("bnts,bsnh->btnh", p, v)
        return x + _pin(jnp.einsum("btnh,dnh->btd", o, w[3]), P("X"))

    w = [abstract(mesh, (D, N, H), split)] * 4
    return jax.jit(attend), (w, abstract(mesh, (ROWS, SEQ, D), P("X")))


def picked_logit(mesh: Mesh, *, mistaken: bool = True) -> Built:
    """Log-probabilities are made whole to pick those of the labels."""

    def loss(head: jax.Array, x: jax.Array, labels: jax.Array) -> jax.Array:
        logits = x @ head  # picked_logit
        if mistaken:
            logits = _pin(logits, P("X", None))
        wide = jax.nn.log_softmax(logits.astype(jnp.float32), axis=-1)
        if mistaken:
            return -jnp.mean(jnp.take_along_axis(wide, labels[:, None], axis=-1))
        hot = jax.nn.one_hot(labels, wide.shape[-1], dtype=jnp.float32)
        return -jnp.mean(jnp.sum(wide * hot, axis=-1))

    head, x = abstract(mesh, (1024, 1 << 17), P(None, "Y")), abstract(mesh, (8192, 1024), P("X"))
    step = jax.jit(jax.grad(loss), out_shardings=head.sharding)
    return step, (head, x, abstract(mesh, (8192,), P("X"), jnp.int32))


def gshard_dispatch(mesh: Mesh, *, mistaken: bool = True) -> Built:
    """Tokens are sent to experts by a one-hot matmul; groups are lost, and all tokens gathered."""

    def layer(up: jax.Array, down: jax.Array, mask: jax.Array, x: jax.Array) -> jax.Array:
        if mistaken:
            x, mask = x.reshape(1, -1, D), mask.reshape(1, -1, *mask.shape[2:])
        sent = jnp.einsum("gtec,gtd->egcd", mask, x)  # gshard_dispatch
        sent = _pin(sent, P("Y", None if mistaken else "X"))
        hidden = jax.nn.relu(jnp.einsum("egcd,edf->egcf", sent, up))
        back = _pin(jnp.einsum("egcf,efd->egcd", hidden, down), P("Y", None if mistaken else "X"))
        return jnp.einsum("gtec,egcd->gtd", mask, back)

    up, down = (abstract(mesh, (8, D, D), P("Y")) for _ in "ud")
    mask = abstract(mesh, (16, 1024, 8, 128), P("X"))
    return jax.jit(layer), (up, down, mask, abstract(mesh, (16, 1024, D), P("X")))


def graph_nodes(mesh: Mesh, *, mistaken: bool = True) -> Built:
    """Neighbours are looked up in nodes that Y splits; sound: Y splits their features."""
    place = P("Y", None) if mistaken else P(None, "Y")

    def layer(w: jax.Array, nodes: jax.Array, ends: jax.Array) -> jax.Array:
        sent = nodes[ends[0]]  # graph_nodes
        met = jax.ops.segment_sum(_pin(sent, P("X", None if mistaken else "Y")), ends[1], 1 << 16)
        return _pin(
            jax.nn.relu(_pin(met, place) @ w), P(("X", "Y"), None) if mistaken else P("X", "Y")
        )

    nodes = abstract(mesh, (1 << 16, 1024), place)
    ends = abstract(mesh, (2, 1 << 20), P(None, "X"), jnp.int32)
    w = abstract(mesh, (1024, 1024), P() if mistaken else P("Y", None))
    return jax.jit(layer), (w, nodes, ends)


def accumulated(mesh: Mesh, *, mistaken: bool = True) -> Built:
    """Gradients of microbatches in a fori_loop; the sum is kept whole in f32 on every device."""

    def step(w: Any, x: jax.Array) -> Any:
        def loss(w: Any, x: jax.Array) -> jax.Array:
            out = x + jax.nn.silu(norm(x) @ w[0]) @ w[1]
            return jnp.mean(_pin(out, P("X", None)).astype(jnp.float32) ** 2)

        def one(at: int, total: Any) -> Any:
            grads = jax.grad(loss)(w, x[at])
            return jax.tree.map(lambda t, g: t + g.astype(t.dtype), total, grads)

        start = jax.tree.map(lambda a: jnp.zeros(a.shape, jnp.float32), w)
        places = jax.tree.map(lambda a: P() if mistaken else a, [P("X", "Y"), P("Y", "X")])
        start = [_pin(a, place) for a, place in zip(start, places, strict=True)]  # accumulated
        return jax.lax.fori_loop(0, x.shape[0], one, start)

    w = [abstract(mesh, (D, F), P("X", "Y")), abstract(mesh, (F, D), P("Y", "X"))]
    places = [a.sharding for a in w]
    return jax.jit(step, out_shardings=places), (w, abstract(mesh, (4, 4096, D), P(None, "X")))

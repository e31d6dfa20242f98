# pyright: reportUnknownParameterType=false, reportUnknownVariableType=false
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# jax annotates its own functions only in part.
"""Mistakes written after the last change to the findings: slices, manual regions, decode, experts.

Every builder has a sound form, `mistaken=False`; the line of a mistake ends in the name of its
builder. X splits the rows; `slices_` programs have two slices of a mesh D=2,X=2,Y=2.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec
from mutants import abstract, norm
from style_mutants import explicit_mesh

P = PartitionSpec
Built = tuple[Any, tuple[Any, ...]]
BATCH, SEQ, D, F, N, H = 16, 1024, 4096, 16384, 32, 128
_pin = jax.lax.with_sharding_constraint


def _mlp(x: jax.Array, up: jax.Array, down: jax.Array) -> jax.Array:
    return jax.nn.silu(norm(x) @ up) @ down


def slices_rows(mesh: Mesh, *, mistaken: bool = True) -> Built:
    """Rows are split inside a slice alone, so that both slices do the same."""
    rows = P("X") if mistaken else P(("D", "X"))

    def loss(layers: Any, x: jax.Array) -> jax.Array:
        for up, down in layers:
            x = _pin(x + jax.nn.silu(norm(x) @ up) @ down, rows)  # slices_rows
        return jnp.mean(x.astype(jnp.float32) ** 2)

    layer = abstract(mesh, (D, F), P("X", "Y")), abstract(mesh, (F, D), P("Y", "X"))
    layers = [layer] * 3
    places = jax.tree.map(lambda a: a.sharding, layers)
    x = abstract(mesh, (16384, D), rows)
    return jax.jit(jax.grad(loss), out_shardings=places), (layers, x)


def slices_weights(mesh: Mesh, *, mistaken: bool = True) -> Built:
    """Weights are split over slices too, and every layer is gathered across the slow network."""
    split = ("D", "X") if mistaken else ("X",)

    def loss(layers: Any, x: jax.Array) -> jax.Array:
        @jax.checkpoint
        def layer(x: jax.Array, w: Any) -> Any:
            return _pin(x + _mlp(x, *w), P(("D", "X"))), None  # slices_weights

        return jnp.mean(jax.lax.scan(layer, x, layers)[0].astype(jnp.float32) ** 2)

    layers = (
        abstract(mesh, (6, D, F), P(None, split, "Y")),
        abstract(mesh, (6, F, D), P(None, "Y", split)),
    )
    places = jax.tree.map(lambda a: a.sharding, layers)
    x = abstract(mesh, (8192, D), P(("D", "X")))
    return jax.jit(jax.grad(loss), out_shardings=places), (layers, x)


def manual_cut(mesh: Mesh, *, mistaken: bool = True) -> Built:
    """A psum whose result is cut by the device's own number, where psum_scatter does both."""
    specs = (P(None, "Y"), P("Y", None), P("X", None, None))

    @partial(jax.shard_map, mesh=mesh, in_specs=specs, out_specs=P("X", "Y", None), check_vma=False)
    def layer(up: jax.Array, down: jax.Array, x: jax.Array) -> jax.Array:
        out = jax.nn.silu(x @ up) @ down
        if not mistaken:
            return jax.lax.psum_scatter(out, "Y", scatter_dimension=1, tiled=True)
        whole = jax.lax.psum(out, "Y")  # manual_cut
        own = whole.shape[1] // mesh.shape["Y"]
        return jax.lax.dynamic_slice_in_dim(whole, jax.lax.axis_index("Y") * own, own, 1)

    up, down = abstract(mesh, (D, F), specs[0]), abstract(mesh, (F, D), specs[1])
    return jax.jit(layer), (up, down, abstract(mesh, (BATCH, SEQ, D), specs[2]))


def manual_rows(mesh: Mesh, *, mistaken: bool = True) -> Built:
    """The tokens of a shard_map have no spec, so all devices of X embed and project all of them."""
    rows = P() if mistaken else P("X")

    @partial(
        jax.shard_map,
        mesh=mesh,
        in_specs=(P(None, "Y"), rows),
        out_specs=P(*rows, "Y") if rows else P(None, "Y"),
        check_vma=False,
    )
    def project(head: jax.Array, x: jax.Array) -> jax.Array:
        return jax.nn.log_sigmoid(x @ head)  # manual_rows

    def step(head: jax.Array, x: jax.Array) -> jax.Array:
        return _pin(project(head, x), P("X", "Y"))

    return jax.jit(step), (abstract(mesh, (D, F), P(None, "Y")), abstract(mesh, (8192, D), P("X")))


def ring_wide(mesh: Mesh, *, mistaken: bool = True) -> Built:
    """A ring of keys and values that were made f32 before they go round."""
    size, spec = mesh.shape["Y"], P("X", "Y", None, None)
    ring = [(at, (at + 1) % size) for at in range(size)]

    @partial(jax.shard_map, mesh=mesh, in_specs=(spec,) * 3, out_specs=spec, check_vma=False)
    def attend(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        if mistaken:
            k, v = k.astype(jnp.float32), v.astype(jnp.float32)

        def turn(carry: Any, _: None) -> Any:
            k, v, total, out = carry
            s = jnp.exp(jnp.einsum("btnh,bsnh->bnts", q, k.astype(q.dtype)).astype(jnp.float32))
            out = out + jnp.einsum("bnts,bsnh->bnth", s.astype(q.dtype), v.astype(q.dtype))
            k, v = (jax.lax.ppermute(x, "Y", ring) for x in (k, v))  # ring_wide
            return (k, v, total + s.sum(-1), out), None

        b, t, n, h = q.shape
        start = (k, v, jnp.zeros((b, n, t)), jnp.zeros((b, n, t, h), q.dtype))
        _, _, total, out = jax.lax.scan(turn, start, None, length=size)[0]
        return (out / total[..., None]).transpose(0, 2, 1, 3).astype(q.dtype)

    return jax.jit(attend), (abstract(mesh, (4, 8192, 16, H), spec),) * 3


def stages_whole(mesh: Mesh, *, mistaken: bool = True) -> Built:
    """Every stage of a pipeline holds the weights of all and picks its own by its number."""
    stages = mesh.shape["Y"]
    split = P() if mistaken else P("Y")
    steps = [(at, (at + 1) % stages) for at in range(stages)]

    @partial(
        jax.shard_map,
        mesh=mesh,
        in_specs=(split, split, P(None, "X")),
        out_specs=P(None, "X"),
        check_vma=False,
    )
    def run(up: jax.Array, down: jax.Array, x: jax.Array) -> jax.Array:
        stage = jax.lax.axis_index("Y")
        own = stage if mistaken else 0
        w_in, w_out = up[own], down[own]  # stages_whole

        def turn(carry: Any, at: jax.Array) -> Any:
            held, done = carry
            held = jnp.where(stage == 0, x[jnp.minimum(at, 7)], held)
            held = held + _mlp(held, w_in, w_out)
            place = jnp.clip(at - stages + 1, 0, 7)
            done = jnp.where(stage == stages - 1, done.at[place].set(held), done)
            return (jax.lax.ppermute(held, "Y", steps), done), None

        start = jnp.zeros_like(x[0]), jnp.zeros_like(x)
        (_, done), _ = jax.lax.scan(turn, start, jnp.arange(8 + stages - 1))
        return jax.lax.psum(jnp.where(stage == stages - 1, done, 0), "Y")

    up, down = abstract(mesh, (stages, D, F), split), abstract(mesh, (stages, F, D), split)
    return jax.jit(run), (up, down, abstract(mesh, (8, 2048, D), P(None, "X")))


def experts_everywhere(mesh: Mesh, *, mistaken: bool = True) -> Built:
    """Experts have no sharding, and every device of Y does all of them; sound: experts over Y."""
    split = P() if mistaken else P("Y")

    def layer(w: Any, x: jax.Array) -> jax.Array:
        gates = jax.nn.softmax((x @ w["router"]).astype(jnp.float32)).astype(x.dtype)
        hidden = jax.nn.relu(jnp.einsum("td,edf->etf", x, w["up"]))  # experts_everywhere
        out = jnp.einsum("etf,efd->etd", hidden, w["down"])
        return _pin(jnp.einsum("etd,te->td", out, gates), P("X", None))

    shape = (8, 2048, 2048)
    up, down = abstract(mesh, shape, split), abstract(mesh, shape, split)
    weights = {"router": abstract(mesh, (2048, 8), P()), "up": up, "down": down}
    return jax.jit(layer), (weights, abstract(mesh, (8192, 2048), P("X", None)))


def experts_sorted(mesh: Mesh, *, mistaken: bool = True) -> Built:
    """All tokens of all devices are sorted by expert; sound: those of a group, groups over X."""

    def dispatch(x: jax.Array, chosen: jax.Array) -> jax.Array:
        return x[jnp.argsort(chosen)]  # experts_sorted

    def layer(up: jax.Array, x: jax.Array, chosen: jax.Array) -> jax.Array:
        if mistaken:
            sent = dispatch(x.reshape(-1, D), chosen.reshape(-1)).reshape(x.shape)
        else:
            sent = jax.vmap(dispatch)(x, chosen)
        return _pin(jnp.einsum("gtd,df->gtf", _pin(sent, P("X")), up), P("X", None, "Y"))

    x, chosen = (16, 1024, D), (16, 1024)
    rows = abstract(mesh, x, P("X")), abstract(mesh, chosen, P("X"), jnp.int32)
    return jax.jit(layer), (abstract(mesh, (D, 2048), P(None, "Y")), *rows)


def explicit_logits(mesh: Mesh, *, mistaken: bool = True) -> Built:
    """Explicit axes: logits are resharded to whole before a softmax over the vocabulary."""
    own = explicit_mesh(mesh)

    def score(head: jax.Array, x: jax.Array) -> jax.Array:
        logits = jnp.einsum("td,dv->tv", x, head, out_sharding=P("X", "Y"))
        if mistaken:
            logits = jax.reshard(logits, P("X", None))  # explicit_logits
        return jax.nn.logsumexp(logits.astype(jnp.float32), axis=-1)

    head = abstract(own, (2048, 1 << 17), P(None, "Y"))
    return jax.jit(score), (head, abstract(own, (8192, 2048), P("X", None)))


def paged_pages(mesh: Mesh, *, mistaken: bool = True) -> Built:
    """Pages of a KV cache are one pool over X, and tables point anywhere; sound: a pool a shard."""
    pages, most = 2048, 64

    def read(pool: jax.Array, tables: jax.Array, q: jax.Array) -> jax.Array:
        keys = pool[tables].reshape(*tables.shape[:-1], -1, *pool.shape[-2:])  # paged_pages
        s = jnp.einsum("bkh,bskh->bks", q, keys).astype(jnp.float32)
        return jax.nn.softmax(s, axis=-1)

    def step(pool: jax.Array, tables: jax.Array, q: jax.Array) -> jax.Array:
        return (read if mistaken else jax.vmap(read))(pool, tables, q)

    split = P("X", None, "Y") if mistaken else P("X", None, None, "Y")
    lead = () if mistaken else (2,)
    pool = abstract(mesh, (*lead, pages // (2 if lead else 1), 16, 8, H), split)
    pool = abstract(mesh, pool.shape, P("X", *[None] * (len(pool.shape) - 3), "Y", None))
    tables = abstract(mesh, (*lead, 64 // (2 if lead else 1), most), P("X"), jnp.int32)
    q = abstract(mesh, (*tables.shape[:-1], 8, H), P("X", *[None] * len(lead), "Y"))
    return jax.jit(step), (pool, tables, q)


def rolled_cache(mesh: Mesh, *, mistaken: bool = True) -> Built:
    """A sliding window is kept by moving all of it one place; sound: a ring buffer."""
    window = 4096

    def step(cache: jax.Array, new: jax.Array, q: jax.Array, at: jax.Array) -> Any:
        if mistaken:
            cache = jnp.concatenate([cache[:, 1:], new[:, None]], axis=1)  # rolled_cache
        else:
            cache = jax.lax.dynamic_update_slice_in_dim(cache, new[:, None], at % window, 1)
        s = jnp.einsum("bnh,bsnh->bns", q, cache).astype(jnp.float32)
        return cache, jnp.einsum("bns,bsnh->bnh", jax.nn.softmax(s).astype(q.dtype), cache)

    cache = abstract(mesh, (64, window, 8, H), P("X", None, "Y"))
    new, at = abstract(mesh, (64, 8, H), P("X", "Y")), jax.ShapeDtypeStruct((), jnp.int32)
    places = cache.sharding, new.sharding
    return jax.jit(step, donate_argnames="cache", out_shardings=places), (cache, new, new, at)


def pairs_whole(mesh: Mesh, *, mistaken: bool = True) -> Built:
    """Images against texts: the square of scores is whole on all devices; sound: rows over all."""
    rows = P(("X", "Y"), None)

    def loss(w: Any, images: jax.Array, texts: jax.Array) -> jax.Array:
        a, b = _pin(images @ w[0], rows), _pin(texts @ w[1], rows)
        scores = _pin(a @ b.T, P() if mistaken else rows)  # pairs_whole
        return jnp.mean(jax.nn.logsumexp(scores.astype(jnp.float32), axis=-1))

    w = [abstract(mesh, (1024, 1024), P())] * 2
    x = abstract(mesh, (32768, 1024), rows)
    return jax.jit(loss), (w, x, x)


def cross_states(mesh: Mesh, *, mistaken: bool = True) -> Built:
    """A decoder is given the encoder's states through a constraint that forgets their batch."""

    def decode(layers: Any, states: jax.Array, x: jax.Array) -> jax.Array:
        for q, k, v, o in layers:
            seen = _pin(states, P()) if mistaken else states  # cross_states
            query = jnp.einsum("btd,dnh->btnh", x, q)
            keys, values = (jnp.einsum("bsd,dnh->bsnh", seen, w) for w in (k, v))
            s = _pin(jnp.einsum("btnh,bsnh->bnts", query, keys), P("X", "Y"))
            p = jax.nn.softmax(s.astype(jnp.float32), axis=-1).astype(x.dtype)
            out = jnp.einsum("btnh,nhd->btd", jnp.einsum("bnts,bsnh->btnh", p, values), o)
            x = _pin(x + out, P("X"))
        return x

    w = abstract(mesh, (D, N, H), P(None, "Y"))
    layers = [(w, w, w, abstract(mesh, (N, H, D), P("Y")))] * 2
    states = abstract(mesh, (BATCH, 1536, D), P("X"))
    return jax.jit(decode), (layers, states, abstract(mesh, (BATCH, 448, D), P("X")))

# pyright: reportUnknownParameterType=false, reportUnknownVariableType=false
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# jax annotates its own functions only in part.
"""Sound programs in the styles people write: no finding that an expert would strike out."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.sharding import Mesh, PartitionSpec
from mutants import abstract, norm
from style_mutants import ROWS, D, F, explicit_mesh

P = PartitionSpec
Built = tuple[Any, tuple[Any, ...]]


def ring(mesh: Mesh) -> Built:
    """Attention over a sequence that Y splits: keys and values go round by ppermute."""
    size, spec = mesh.shape["Y"], P("X", "Y", None, None)

    @partial(jax.shard_map, mesh=mesh, in_specs=(spec,) * 3, out_specs=spec, check_vma=False)
    def attend(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        def turn(carry: Any, _: None) -> Any:
            k, v, top, total, out = carry
            s = jnp.einsum("btnh,bsnh->bnts", q, k).astype(jnp.float32)
            new = jnp.maximum(top, s.max(-1))
            p = jnp.exp(s - new[..., None])
            keep = jnp.exp(top - new)
            out = out * keep[..., None] + jnp.einsum("bnts,bsnh->bnth", p.astype(v.dtype), v)
            ring = [(at, (at + 1) % size) for at in range(size)]
            k, v = (jax.lax.ppermute(x, "Y", ring) for x in (k, v))
            return (k, v, new, total * keep + p.sum(-1), out), None

        b, t, n, h = q.shape
        start = (k, v, jnp.full((b, n, t), -jnp.inf), jnp.zeros((b, n, t)), jnp.zeros((b, n, t, h)))
        _, _, _, total, out = jax.lax.scan(turn, start, None, length=size)[0]
        return (out / total[..., None]).transpose(0, 2, 1, 3).astype(q.dtype)

    return jax.jit(attend), (abstract(mesh, (4, 8192, 16, 128), spec),) * 3


def gathered_matmul(mesh: Mesh) -> Built:
    """Sequence parallelism by hand: gather the sequence, two matmuls, scatter the sum."""
    specs = (P(None, "Y"), P("Y", None), P("X", "Y", None))

    @partial(jax.shard_map, mesh=mesh, in_specs=specs, out_specs=P("X", "Y", None))
    def layer(w_in: jax.Array, w_out: jax.Array, x: jax.Array) -> jax.Array:
        whole = jax.lax.all_gather(x, "Y", axis=1, tiled=True)
        out = jax.nn.silu(whole @ w_in) @ w_out
        return x + jax.lax.psum_scatter(out, "Y", scatter_dimension=1, tiled=True)

    shapes = ((D, F), (F, D), (8, 2048, D))
    return jax.jit(layer), tuple(abstract(mesh, s, p) for s, p in zip(shapes, specs, strict=True))


def manual_experts(mesh: Mesh) -> Built:
    """Experts split over Y: tokens go to them and back by all_to_all."""
    size, capacity = mesh.shape["Y"], 512
    experts = 2 * size

    @partial(
        jax.shard_map,
        mesh=mesh,
        in_specs=(P(("X", "Y"), None), P(None, None), P("Y", None, None), P("Y", None, None)),
        out_specs=P(("X", "Y"), None),
        check_vma=False,
    )
    def layer(x: jax.Array, router: jax.Array, up: jax.Array, down: jax.Array) -> jax.Array:
        scores = jax.nn.softmax((x @ router).astype(jnp.float32))
        weight, chosen = jax.lax.top_k(scores.T, capacity)
        sent = x[chosen]
        sent = jax.lax.all_to_all(sent, "Y", split_axis=0, concat_axis=1, tiled=True)
        back = jnp.einsum("ecf,efd->ecd", jax.nn.relu(jnp.einsum("ecd,edf->ecf", sent, up)), down)
        back = jax.lax.all_to_all(back, "Y", split_axis=1, concat_axis=0, tiled=True)
        return jnp.zeros_like(x).at[chosen].add((back * weight[..., None]).astype(x.dtype))

    return jax.jit(layer), (
        abstract(mesh, (ROWS * 2, D), P(("X", "Y"), None)),
        abstract(mesh, (D, experts), P(None, None)),
        abstract(mesh, (experts, D, 4096), P("Y", None, None)),
        abstract(mesh, (experts, 4096, D), P("Y", None, None)),
    )


def explicit_transformer(mesh: Mesh) -> Built:
    """Attention and an MLP with shardings in types, trained."""
    mesh = explicit_mesh(mesh)

    def loss(w: dict[str, jax.Array], x: jax.Array) -> jax.Array:
        h = norm(x)
        q, k, v = (jnp.einsum("btd,dnh->btnh", h, w[name]) for name in "qkv")
        s = jnp.einsum("btnh,bsnh->bnts", q, k).astype(jnp.float32) / 128**0.5
        o = jnp.einsum("bnts,bsnh->btnh", jax.nn.softmax(s, axis=-1).astype(x.dtype), v)
        whole = P("X", None, None)
        x = x + jnp.einsum("btnh,nhd->btd", o, w["o"], out_sharding=whole)
        up = jax.nn.silu(jnp.einsum("btd,df->btf", norm(x), w["up"]))
        x = x + jnp.einsum("btf,fd->btd", up, w["down"], out_sharding=whole)
        return jnp.mean(x.astype(jnp.float32) ** 2)

    heads = {n: abstract(mesh, (D, 32, 128), P(None, "Y", None)) for n in "qkv"}
    weights = heads | {
        "o": abstract(mesh, (32, 128, D), P("Y", None, None)),
        "up": abstract(mesh, (D, F), P(None, "Y")),
        "down": abstract(mesh, (F, D), P("Y", None)),
    }
    return jax.jit(jax.grad(loss)), (weights, abstract(mesh, (8, 2048, D), P("X", None, None)))


def saved_names(mesh: Mesh) -> Built:
    """A checkpoint policy that keeps what has a name."""
    from jax.ad_checkpoint import checkpoint_name

    policy = jax.checkpoint_policies.save_only_these_names("out")

    def loss(w_in: jax.Array, w_out: jax.Array, x: jax.Array) -> jax.Array:
        @partial(jax.checkpoint, policy=policy)
        def layer(x: jax.Array, w: Any) -> Any:
            out = jax.nn.silu(norm(x) @ w[0]) @ w[1]
            out = checkpoint_name(jax.lax.with_sharding_constraint(out, P("X", None)), "out")
            return x + out, None

        return jnp.mean(jax.lax.scan(layer, x, (w_in, w_out))[0].astype(jnp.float32) ** 2)

    w_in, w_out = (
        abstract(mesh, (4, D, F), P(None, None, "Y")),
        abstract(mesh, (4, F, D), P(None, "Y")),
    )
    step = jax.jit(jax.grad(loss, (0, 1)), out_shardings=(w_in.sharding, w_out.sharding))
    return step, (w_in, w_out, abstract(mesh, (ROWS, D), P("X", None)))


def saved_dots(mesh: Mesh) -> Built:
    """A policy that keeps matmuls, layers one by one."""
    policy = jax.checkpoint_policies.dots_with_no_batch_dims_saveable

    @partial(jax.checkpoint, policy=policy)
    def layer(x: jax.Array, w_in: jax.Array, w_out: jax.Array) -> jax.Array:
        return jax.lax.with_sharding_constraint(
            x + jax.nn.gelu(norm(x) @ w_in) @ w_out, P("X", None)
        )

    def loss(weights: list[Any], x: jax.Array) -> jax.Array:
        for w in weights:
            x = layer(x, *w)
        return jnp.mean(x.astype(jnp.float32) ** 2)

    pair = abstract(mesh, (D, F), P(None, "Y")), abstract(mesh, (F, D), P("Y", None))
    weights = [pair] * 3
    places = jax.tree.map(lambda w: w.sharding, weights)
    x = abstract(mesh, (ROWS, D), P("X", None))
    return jax.jit(jax.grad(loss), out_shardings=places), (weights, x)


def _scale_kernel(x_ref: Any, w_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[...] * w_ref[...]


def _scaled(x: jax.Array, w: jax.Array) -> jax.Array:
    rows = pl.BlockSpec((256, x.shape[1]), lambda i: (i, 0))
    return pl.pallas_call(
        _scale_kernel,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        grid=(x.shape[0] // 256,),
        in_specs=[rows, pl.BlockSpec((1, x.shape[1]), lambda i: (0, 0))],
        out_specs=rows,
    )(x, w)


def kernel(mesh: Mesh) -> Built:
    """A Pallas kernel inside a shard_map, with matmuls around it."""
    manual = partial(jax.shard_map, mesh=mesh, check_vma=False)
    scaled = manual(_scaled, in_specs=(P("X", None), P(None, None)), out_specs=P("X", None))

    def layer(scale: jax.Array, w_in: jax.Array, w_out: jax.Array, x: jax.Array) -> jax.Array:
        return x + jax.nn.silu(scaled(x, scale) @ w_in) @ w_out

    return jax.jit(layer), (
        abstract(mesh, (1, D), P(None, None)),
        abstract(mesh, (D, F), P(None, "Y")),
        abstract(mesh, (F, D), P("Y", None)),
        abstract(mesh, (ROWS, D), P("X", None)),
    )


def pipeline(mesh: Mesh) -> Built:
    """Four stages over Y that hand activations on by ppermute, microbatch after microbatch."""
    stages, microbatches = mesh.shape["Y"], 8
    specs = (P("Y", None, None), P("Y", None, None), P(None, "X", None))

    @partial(
        jax.shard_map, mesh=mesh, in_specs=specs, out_specs=P(None, "X", None), check_vma=False
    )
    def run(w_in: jax.Array, w_out: jax.Array, x: jax.Array) -> jax.Array:
        stage = jax.lax.axis_index("Y")
        ring = [(at, (at + 1) % stages) for at in range(stages)]

        def turn(carry: Any, at: jax.Array) -> Any:
            held, done = carry
            first = x[jnp.minimum(at, microbatches - 1)]
            held = jnp.where(stage == 0, first, held)
            held = held + jax.nn.silu(held @ w_in[0]) @ w_out[0]
            place = jnp.clip(at - stages + 1, 0, microbatches - 1)
            done = jnp.where(stage == stages - 1, done.at[place].set(held), done)
            return (jax.lax.ppermute(held, "Y", ring), done), None

        turns = jnp.arange(microbatches + stages - 1)
        (_, done), _ = jax.lax.scan(turn, (jnp.zeros_like(x[0]), jnp.zeros_like(x)), turns)
        return jax.lax.psum(jnp.where(stage == stages - 1, done, 0), "Y")

    shapes = ((stages, D, F), (stages, F, D), (microbatches, 1024, D))
    return jax.jit(run), tuple(abstract(mesh, s, p) for s, p in zip(shapes, specs, strict=True))


def data_parallel(mesh: Mesh) -> Built:
    """Both axes split the rows; a small model is whole on every device, as it should be."""

    def step(w: list[jax.Array], x: jax.Array, y: jax.Array) -> Any:
        def loss(w: list[jax.Array]) -> jax.Array:
            h = x
            for layer in w:
                h = jnp.tanh(h @ layer)
            return jnp.mean((h - y).astype(jnp.float32) ** 2)

        value, grads = jax.value_and_grad(loss)(w)
        return jax.tree.map(lambda a, g: a - 0.1 * g, w, grads), value

    rows = abstract(mesh, (1 << 16, 1024), P(("X", "Y"), None))
    return jax.jit(step, donate_argnums=0), ([abstract(mesh, (1024, 1024), P())] * 4, rows, rows)


def weight_stationary(mesh: Mesh) -> Built:
    """Decode with weights split over both axes, which never move; rows are whole."""
    specs = (P("X", "Y"), P("Y", "X"), P(None, "X"))

    def layer(w_in: jax.Array, w_out: jax.Array, x: jax.Array) -> jax.Array:
        hidden = jax.nn.silu(x @ w_in)
        return jax.lax.with_sharding_constraint(x + hidden @ w_out, P(None, "X"))

    shapes = ((D, F), (F, D), (64, D))
    return jax.jit(layer), tuple(abstract(mesh, s, p) for s, p in zip(shapes, specs, strict=True))

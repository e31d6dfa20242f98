"""Runs pipeline schedules on fake devices and compares with the program without a pipeline.

Run as a process of its own: `python pipeline_program_worker.py`. Prints one JSON object: the
largest relative error of each case, and the temporary memory of schedules at 32 microbatches.
"""

import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = (
    "--xla_force_host_platform_device_count=8"
    " --xla_backend_optimization_level=0"  # of machine code: compiling is most of the time here
)

import functools
import json
import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P
from stacked_layers import PADDING, cut_layers, join_layers, layer_places, scan_layers

from rooflight.errors import UsageError
from rooflight.models.layout.schedules import make_schedule
from rooflight.program.pipeline.run import run_schedule

V, D, F, B, T = 11, 8, 16, 4, 3
Tree = Any  # a pytree of arrays


@dataclass(frozen=True)
class Case:
    """A schedule, a cut of the layers, and what splits the work inside a stage."""

    schedule: str
    stages: int
    microbatches: int = 5
    layers: int = 9  # no number of stages here divides it
    inside: str = ""  # explicit (fsdp and tp), ring (a permute)

    @property
    def name(self) -> str:
        sizes = f"S={self.stages} M={self.microbatches} L={self.layers}"
        return f"{self.schedule} {sizes} {self.inside}".strip()


CASES = (
    *(Case(name, stages) for name in ("gpipe", "1f1b", "interleaved") for stages in (2, 4)),
    *(Case("zb-h1", 2), Case("zb-h1", 4), Case("zb-v", 4)),
    Case("1f1b", 2, inside="explicit"),
    Case("interleaved", 2, inside="explicit"),
    Case("zb-v", 2, inside="explicit"),
    Case("zb-h1", 2, inside="ring"),
)


def draw(num_layers: int, microbatches: int) -> tuple[Tree, Tree, Tree]:
    rng = np.random.default_rng(7)
    layers = {
        "in": rng.normal(size=(num_layers, D, F)),
        "out": rng.normal(size=(num_layers, F, D)),
    }
    ends = {"embedding": rng.normal(size=(V, D)), "head": rng.normal(size=(D, V))}
    tokens = rng.integers(0, V, (2, microbatches, B, T))
    floats = jax.tree.map(lambda a: np.asarray(a / 3, np.float32), (layers, ends))
    return *floats, {"read": tokens[0].astype(np.int32), "next": tokens[1].astype(np.int32)}


def layer(weights: Tree, x: Tree) -> Tree:
    """A residual layer; the second part of x travels along and adds up, as a balance loss does."""
    hidden, aside = x
    up = jnp.tanh(jnp.einsum("btd,df->btf", hidden, weights["in"]))
    whole = jax.typeof(hidden).sharding
    down = jnp.einsum("btf,fd->btd", up, weights["out"], out_sharding=whole)
    return hidden + down, aside + jnp.mean(down**2, axis=(1, 2))


def plain_layer(weights: Tree, x: Tree) -> Tree:
    down = jnp.tanh(x[0] @ weights["in"]) @ weights["out"]
    return x[0] + down, x[1] + jnp.mean(down**2, axis=(1, 2))


def ring_layer(weights: Tree, x: Tree) -> Tree:
    """The same layer with F over X: each device's term goes once round the ring."""

    def terms(w_in: jax.Array, w_out: jax.Array, hidden: jax.Array) -> jax.Array:
        size = lax.axis_size("X")
        hidden = lax.pcast(hidden, "X", to="varying")
        term = jnp.tanh(hidden @ w_in) @ w_out
        total = term
        for _ in range(size - 1):
            term = lax.ppermute(term, "X", [(i, (i + 1) % size) for i in range(size)])
            total = total + term
        return total[None]

    specs = (P(None, "X"), P("X"), P())
    # Saved inputs alone: jax cannot type what a map within a map saves of its own.
    map_x = jax.shard_map(jax.checkpoint(terms), in_specs=specs, out_specs=P("X"), axis_names={"X"})
    # Every device has the whole sum: the mean of the copies is the sum, and counts each term once.
    down = map_x(weights["in"], weights["out"], x[0]).mean(axis=0)
    return x[0] + down, x[1] + jnp.mean(down**2, axis=(1, 2))


def first(ends: Tree, microbatch: Tree) -> Tree:
    read = microbatch["read"]
    out = jax.typeof(read).sharding.spec
    hidden = ends["embedding"].at[read].get(out_sharding=P(*out, None))
    return hidden, jnp.zeros_like(hidden[:, 0, 0])


def plain_first(ends: Tree, microbatch: Tree) -> Tree:
    hidden = ends["embedding"][microbatch["read"]]
    return hidden, jnp.zeros_like(hidden[:, 0, 0])


def loss(ends: Tree, x: Tree, microbatch: Tree) -> jax.Array:
    scores = jax.nn.log_softmax(jnp.einsum("btd,dv->btv", x[0], ends["head"]))
    right = jax.nn.one_hot(microbatch["next"], V)
    return -(scores * right).sum(-1).mean() + 0.1 * x[1].mean()


def unpipelined(layers: Tree, ends: Tree, batches: Tree) -> jax.Array:
    def one(microbatch: Tree) -> jax.Array:
        x = plain_first(ends, microbatch)
        for i in range(len(layers["in"])):
            x = plain_layer(jax.tree.map(lambda a, i=i: a[i], layers), x)
        return loss(ends, x, microbatch)

    return jnp.mean(jax.vmap(one)(batches))


@functools.cache
def expected(num_layers: int, microbatches: int) -> Tree:
    """Loss and gradients on one device, without stages."""
    arrays = jax.tree.map(jnp.asarray, draw(num_layers, microbatches))
    return jax.device_get(jax.jit(jax.value_and_grad(unpipelined, (0, 1)))(*arrays))


def setting(case: Case) -> tuple[Any, Tree, Any]:
    """Mesh, specs of stacked weights, spec of microbatches."""
    names, split = ("P", "X"), (None, None)
    sizes = (case.stages, 2 if case.inside else 1)
    batch: Any = P()
    if case.inside == "explicit":
        names, sizes, split, batch = ("P", "X", "Y"), (2, 2, 2), ("X", "Y"), P(None, "X")
    if case.inside == "ring":
        split = (None, "X")
    devices = jax.devices()[: math.prod(sizes)]
    mesh = jax.make_mesh(sizes, names, devices=devices)
    d, f = split
    return mesh, {"in": P("P", None, d, f), "out": P("P", None, f, d)}, batch


def largest_error(case: Case) -> float:
    """Of the loss and every gradient, each relative to its largest element."""
    layers, ends, batches = draw(case.layers, case.microbatches)
    wanted = expected(case.layers, case.microbatches)
    table = make_schedule(case.schedule, stages=case.stages, microbatches=case.microbatches)
    places = layer_places(case.layers, table)
    mesh, specs, batch = setting(case)
    body = ring_layer if case.inside == "ring" else layer

    def step(weights: Tree, real: jax.Array, ends: Tree, batches: Tree) -> Any:
        total, gradients = run_schedule(
            *(table, scan_layers(body), weights, batches, loss),
            axis="P",
            first_fn=first,
            ends=ends,
            fixed=real,
        )
        return total, gradients.stages, gradients.ends

    stacked = jax.device_get(cut_layers(jax.tree.map(jnp.asarray, layers), places))
    with jax.set_mesh(mesh):
        weights = {name: jax.device_put(a, specs[name]) for name, a in stacked.items()}
        real = jax.device_put(places != PADDING, P("P"))
        whole = jax.tree.map(lambda a: jax.device_put(a, P()), ends)
        split = jax.tree.map(lambda a: jax.device_put(a, batch), batches)
        total, stages, around = jax.device_get(jax.jit(step)(weights, real, whole, split))
    found = (total, (join_layers(stages, places), around))
    errors = jax.tree.map(lambda a, b: np.abs(a - b).max() / np.abs(b).max(), found, wanted)
    return float(max(jax.tree.leaves(errors)))


def temporary_bytes(name: str, microbatches: int) -> int:
    """Of one device: 4 stages of one layer; x is 16 KiB, weights are as much."""
    stages, width = 4, 32
    table = make_schedule(name, stages=stages, microbatches=microbatches)
    mesh = jax.make_mesh((stages,), ("P",), devices=jax.devices()[:stages])

    def stage(w: jax.Array, x: jax.Array) -> jax.Array:
        return x + jnp.tanh(x @ w[0]) @ w[1]

    def step(w: jax.Array, batches: jax.Array) -> Any:
        total, found = run_schedule(
            table, stage, w, batches, lambda _, x, __: (x**2).mean(), axis="P"
        )
        return total, found.stages

    def abstract(spec: P, *shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=jax.NamedSharding(mesh, spec))

    with jax.set_mesh(mesh):
        weights = abstract(P("P"), table.num_stages, 2, width, width)
        batches = abstract(P(), microbatches, 8, 16, width)
        analysis = jax.jit(step).lower(weights, batches).compile().memory_analysis()
    assert analysis is not None
    return analysis.temp_size_in_bytes


def refusal() -> str:
    """What a stage that changes its type is told."""
    table = make_schedule("gpipe", stages=2, microbatches=2)
    with jax.set_mesh(jax.make_mesh((2,), ("P",), devices=jax.devices()[:2])):
        weights = jax.device_put(np.ones((2, 4), np.float32), P("P"))
        try:
            run_schedule(
                *(table, lambda w, x: x.astype(jnp.bfloat16), weights, np.ones((2, 4), np.float32)),
                lambda _, x, __: x.mean(),
                axis="P",
            )
        except UsageError as error:
            return str(error)
    return ""


if __name__ == "__main__":
    jax.config.update("jax_default_matmul_precision", "highest")
    errors = {case.name: largest_error(case) for case in CASES}
    memory = {
        f"{name} {m}": temporary_bytes(name, m) for name in ("gpipe", "1f1b") for m in (16, 32)
    }
    print(json.dumps({"errors": errors, "memory": memory, "refusal": refusal()}))

"""Compiles attention and its gradient for a TPU that is not there, and looks for the kernel.

Run as a process of its own, to which the test gives the environment of the compiler. Prints one
JSON object: the kernel calls of the compiled gradient of attention called plainly, and in a map.
"""

import json
from functools import partial

import jax
import jax.numpy as jnp
from jax.experimental import topologies
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from rooflight.models.graph.ops import Mask
from rooflight.program.attention.kernels import attend
from rooflight.program.attention.ring import ring_attend
from rooflight.program.attention.tile import How

SCALE = 0.125


def plain(q: jax.Array, k: jax.Array, v: jax.Array, sinks: jax.Array) -> jax.Array:
    return attend(q, k, v, mask=Mask(200), scale=SCALE, softcap=30.0, sinks=sinks)


def ring(q: jax.Array, k: jax.Array, v: jax.Array, sinks: jax.Array) -> jax.Array:
    spec = P("a", "b")
    local = partial(ring_attend, axis="b", how=How(Mask(), SCALE))
    mapped = jax.shard_map(local, in_specs=(spec, spec, spec), out_specs=spec)
    return mapped(q, k, v) + sinks[..., None]


def kernel_calls(form: str) -> int:
    topology = topologies.get_topology_desc("v5e:2x2", platform="tpu")
    mesh = jax.make_mesh((2, 2), ("a", "b"), devices=topology.devices)
    split = P("a", None, "b") if form == "plain" else P("a", "b")
    shapes = ((2, 256, 2, 2, 64), (2, 256, 2, 64), (2, 256, 2, 128), (2, 2))
    run = {"plain": plain, "ring": ring}[form]

    def loss(*arrays: jax.Array) -> jax.Array:
        return run(*arrays).astype(jnp.float32).sum()

    with jax.set_mesh(mesh):
        arrays = [
            jax.ShapeDtypeStruct(s, jnp.bfloat16, sharding=NamedSharding(mesh, spec))
            for s, spec in zip(shapes, (split, split, split, P()), strict=True)
        ]
        compiled = jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3))).lower(*arrays).compile()
    return (compiled.as_text() or "").count('custom_call_target="tpu_custom_call"')


if __name__ == "__main__":
    print(json.dumps({form: kernel_calls(form) for form in ("plain", "ring")}))

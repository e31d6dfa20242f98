"""Compiles attention and its gradient for a TPU that is not there, and looks for the kernel.

Run as a process of its own, to which the test gives the environment of the compiler. Prints one
JSON object: the kernel calls of the compiled gradient of attention called plainly, in a map, and
in maps that split positions.
"""

import json

import jax
import jax.numpy as jnp
from jax.experimental import topologies
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from rooflight.models.graph.ops import Mask
from rooflight.program.attention.gathered import gathered_attend
from rooflight.program.attention.kernels import attend
from rooflight.program.attention.ring import ring_attend
from rooflight.program.attention.tile import How

SCALE = 0.125


def plain(q: jax.Array, k: jax.Array, v: jax.Array, sinks: jax.Array) -> jax.Array:
    return attend(q, k, v, mask=Mask(200), scale=SCALE, softcap=30.0, sinks=sinks)


def ring(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    return ring_attend(q, k, v, axis="b", how=How(Mask(), SCALE))


def gathered(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    k, v = (jax.lax.all_gather(x, "b", axis=1, tiled=True) for x in (k, v))
    return gathered_attend(q, k, v, axis="b", how=How(Mask(200), SCALE))


def mapped(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    return attend(q, k, v, mask=Mask(200), scale=SCALE)


def kernel_calls(form: str, length: int = 512) -> int:
    topology = topologies.get_topology_desc("v5e:2x2", platform="tpu")
    mesh = jax.make_mesh((2, 2), ("a", "b"), devices=topology.devices)
    split = P("a", "b") if form in ("ring", "gathered") else P("a", None, "b")
    shapes = ((2, length, 2, 2, 64), (2, length, 2, 64), (2, length, 2, 128), (2, 2))

    def loss(*arrays: jax.Array) -> jax.Array:
        if form == "plain":
            return plain(*arrays).astype(jnp.float32).sum()
        local = {"ring": ring, "gathered": gathered, "mapped": mapped}[form]
        out = jax.shard_map(local, in_specs=split, out_specs=split)(*arrays[:3])
        return (out.astype(jnp.float32) + arrays[3].reshape(1, 1, 2, 2, 1)).sum()

    with jax.set_mesh(mesh):
        arrays = [
            jax.ShapeDtypeStruct(s, jnp.bfloat16, sharding=NamedSharding(mesh, spec))
            for s, spec in zip(shapes, (split, split, split, P()), strict=True)
        ]
        compiled = jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3))).lower(*arrays).compile()
    return (compiled.as_text() or "").count('custom_call_target="tpu_custom_call"')


if __name__ == "__main__":
    calls = {form: kernel_calls(form) for form in ("plain", "mapped", "gathered", "ring")}
    print(json.dumps(calls | {"short ring": kernel_calls("ring", 256)}))

"""Compiles a generate step for a TPU that is not there, and looks for the kernel and for copies.

Run as a process of its own, to which the test gives the environment of the compiler. Prints one
JSON object: for each model the calls of kernels, and bytes beside the arguments and of the cache.
"""

import json
import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import topologies
from jax.sharding import NamedSharding, PartitionSpec

from rooflight.dtypes import DTYPES
from rooflight.hardware.mesh import parse_mesh
from rooflight.models.graph.build import model_graph
from rooflight.models.graph.count import dim_sizes
from rooflight.models.layout.rules import parse_layout
from rooflight.models.spec import Attention, Block, Latent, Mlp, ModelSpec, Repeat
from rooflight.plan.training.derive.constraints import constraints_of
from rooflight.program.decode.cache import abstract_cache
from rooflight.program.decode.step import generate
from rooflight.program.model.forward import Program
from rooflight.program.model.params import abstract_params
from rooflight.program.shardings import device_mesh

BATCH, TABLE, NUM_BLOCKS, BLOCK = 16, 16, 1024, 32
LAYERS = 3
MODELS = {
    "grouped": Attention(16, 8, 128),
    "windowed": Attention(16, 8, 128, window=100, softcap=30.0),
    "one kv head a device": Attention(16, 2, 128),
    "sinks": Attention(16, 8, 128, has_sinks=True),
    "latent": Attention(16, 16, 128, latent=Latent(None, 128, 64, 128)),
}


def compiled(attention: Attention) -> dict[str, Any]:
    topology = topologies.get_topology_desc("v5e:2x2", platform="tpu")
    model = ModelSpec(
        "small", "Small", 512, 1024, (Repeat((Block(attention, Mlp(1024)),), LAYERS),)
    )
    graph, mesh = model_graph(model), parse_mesh("X=2,Y=2", on="v5e:2x2")
    dims, layout = dim_sizes(graph, batch=BATCH, seq=1), parse_layout("dp=X,tp=Y")
    constraints = constraints_of(graph, layout, mesh=mesh, dims=dims, dtype=DTYPES["bf16"])
    program = Program(model, constraints, weights="bf16", compute="bf16")
    devices = device_mesh(constraints.axes, topology.devices)

    def ids(*shape: int) -> jax.ShapeDtypeStruct:
        by_row = NamedSharding(devices, PartitionSpec("X"))
        return jax.ShapeDtypeStruct(shape, jnp.int32, sharding=by_row)

    with jax.set_mesh(devices):
        params = abstract_params(program.specs, constraints, devices)
        cache = abstract_cache(program, devices, num_blocks=NUM_BLOCKS, block_size=BLOCK)
        rows = ids(BATCH), ids(BATCH), ids(BATCH, TABLE)
        jitted: Any = jax.jit(partial(generate, program), donate_argnums=1)
        step = jitted.lower(params, cache, *rows).compile()
    memory = step.memory_analysis()
    held = sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(cache))
    return {
        "kernels": (step.as_text() or "").count('custom_call_target="tpu_custom_call"'),
        "temporary": memory.temp_size_in_bytes,
        "cache": held // 4,  # on one device, where the cache is split 4 ways
    }


if __name__ == "__main__":
    print(json.dumps({name: compiled(attention) for name, attention in MODELS.items()}))

"""Compiles every case of one mesh with libtpu, no chip attached: `python xla_worker.py MESH DIR`.

One program holds all contractions, each with parameters and a result of its own. XLA writes the
program it has right after partitioning to DIR; code generation, most of the time of a compile, is
of no interest here, so whoever starts this process ends it when that file is complete.
"""

import os
import sys

os.environ |= {  # quiet, without a lock file, and with no look for a TPU; before jax is imported
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_LOG_DIR": "disabled",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from xla_cases import TOPOLOGY, Case, cases

from rooflight.algebra.notation import Contraction, Tensor
from rooflight.hardware.mesh import parse_mesh

OPTIONS = {
    "xla_dump_hlo_pass_re": "tpu-spmd-partitioning",
    "xla_dump_large_constants": True,  # which part a device slices is looked up in one
    "xla_jf_spmd_threshold_for_windowed_einsum_mib": "1000000",  # a later stage, switched off
}


def device_mesh(text: str) -> Mesh:
    """The axes of a mesh over the chips of the topology, which are sorted by position."""
    topology = topologies.get_topology_desc(TOPOLOGY, "tpu")
    chips = sorted(topology.devices, key=lambda d: tuple(d.coords))
    axes = parse_mesh(text, on=TOPOLOGY).axes
    grid = np.array(chips).reshape(tuple(axes.values()))
    return Mesh(grid, tuple(axes), axis_types=(AxisType.Auto,) * len(axes))


def einsum_text(contraction: Contraction) -> str:
    letters = {d: chr(ord("a") + i) for i, d in enumerate(contraction.dims)}
    terms = ["".join(letters[d] for d in t.dims) for t in contraction.operands]
    return f"{','.join(terms)}->{''.join(letters[d] for d in contraction.result.dims)}"


def abstract(tensor: Tensor, case: Case) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(tuple(case.dims[d] for d in tensor.dims), jnp.bfloat16)


def sharding(tensor: Tensor, mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec(*(axes or None for axes in tensor.axes)))


def compile_cases(mesh_text: str, folder: str) -> None:
    """Lowers one function with all cases of the mesh and compiles it, dumping into `folder`."""
    mesh = device_mesh(mesh_text)
    chosen = [c for c in cases() if c.mesh == mesh_text]
    operands = [(t, c) for c in chosen for t in c.contraction.operands]

    def matmuls(*arrays: jax.Array) -> list[jax.Array]:
        return [
            jnp.einsum(einsum_text(c.contraction), arrays[2 * i], arrays[2 * i + 1])
            for i, c in enumerate(chosen)
        ]

    function = jax.jit(
        matmuls,
        in_shardings=[sharding(t, mesh) for t, _ in operands],
        out_shardings=[sharding(c.contraction.result, mesh) for c in chosen],
    )
    lowered = function.lower(*(abstract(t, c) for t, c in operands))
    lowered.compile(compiler_options={"xla_dump_to": folder, **OPTIONS})


if __name__ == "__main__":
    compile_cases(*sys.argv[1:])

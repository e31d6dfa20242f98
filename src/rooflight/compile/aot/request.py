"""`CompileRequest`: which program, for which target, how far; and as a child process reads it."""

import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from rooflight.compile.aot.target import CompileTarget, make_target
from rooflight.hardware.mesh import Mesh

Stage = Literal["partitioned", "scheduled", "executable"]
CompilerOption = str | int | bool

# Collective matmuls are made while partitioning; without them a partitioned program shows the
# plain collectives of the derivation.
PLAIN_COLLECTIVES: Mapping[str, CompilerOption] = {
    "xla_jf_spmd_threshold_for_windowed_einsum_mib": "1000000"
}


def plain_collectives(mesh: Mesh) -> Mapping[str, CompilerOption]:
    """The options of a mesh's compiler; that of GPUs makes none unless it is told to."""
    return PLAIN_COLLECTIVES if mesh.slice.chip.kind == "tpu" else {}


@dataclass(frozen=True, slots=True)
class CompileRequest:
    """One program to compile.

    `build` is `package.module:function`; the function takes the jax mesh and `arguments`, and
    returns a jitted function and its abstract arguments. `until` says where to stop: right after
    partitioning, at the schedule (before code generation, which takes most of a compile and no
    longer changes collectives), or at the finished executable, with its cycle estimates.
    """

    build: str
    mesh: Mesh
    arguments: Mapping[str, object] = field(default_factory=dict[str, object])
    until: Stage = "scheduled"
    options: Mapping[str, CompilerOption] = field(default_factory=dict[str, CompilerOption])
    folder: str = ""  # where `build` is found, if not on the path
    explicit: bool = False  # whether shardings are types, as on meshes of `jax.make_mesh`
    timeout_s: float = 900.0
    python: str = ""  # whose jax and compiler; those of this process if left out


class ChildTask(NamedTuple):
    """What a child is told: a request, its target, the folder to dump into, the cache to ask."""

    request: CompileRequest
    target: CompileTarget
    dump: Path
    cache: Path


def write_task(request: CompileRequest, path: Path, *, cache: Path) -> None:
    """For a child that dumps beside the file."""
    task = ChildTask(request, make_target(request.mesh), path.parent, cache)
    path.write_bytes(pickle.dumps(task))


def read_task(path: Path) -> ChildTask:
    """The task a parent wrote; only our own parent writes one."""
    return pickle.loads(path.read_bytes())

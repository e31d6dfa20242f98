"""`CompileRequest`: which program, for which target, how far; and as JSON for a child process."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from rooflight.compile.aot.target import CompileTarget, Option, make_target
from rooflight.hardware.mesh import Mesh, Segment

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


@dataclass(frozen=True, slots=True)
class ChildTask:
    """A request as the child reads it: plain data, the folder to dump into, the cache to ask."""

    build: str
    arguments: Mapping[str, object]
    until: Stage
    options: Mapping[str, CompilerOption]
    folder: str
    explicit: bool
    target: CompileTarget
    dump: str
    cache: str


def make_task(request: CompileRequest, *, dump: Path, cache: Path | None) -> ChildTask:
    """What a child is told."""
    return ChildTask(
        build=request.build,
        arguments=request.arguments,
        until=request.until,
        options=request.options,
        folder=request.folder,
        explicit=request.explicit,
        target=make_target(request.mesh),
        dump=str(dump),
        cache=str(cache) if cache else "",
    )


def write_task(task: ChildTask, path: Path) -> None:
    path.write_text(json.dumps(asdict(task)))


def read_task(path: Path) -> ChildTask:
    """The task a parent wrote; only our own parent writes one, so nothing is checked."""
    data: dict[str, Any] = json.loads(path.read_text())  # Any: plain JSON of our own making
    target: dict[str, Any] = data.pop("target")
    axes = {name: tuple(Segment(**s) for s in parts) for name, parts in target.pop("axes").items()}
    options: dict[str, Option] = target.pop("options")
    return ChildTask(**data, target=CompileTarget(**target, options=options, axes=axes))

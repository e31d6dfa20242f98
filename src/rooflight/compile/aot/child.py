# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
# jax annotates its own functions only in part.
"""One compile in a process of its own: `python -m rooflight.compile.aot.child TASK.pickle`.

The compiler may crash its process, and is stopped on purpose when it has written what was asked
for. The parent process reads `lowered.json` (the key of the result), `result.json` (written at
the end, error or not) and the compiler's dumps, all in the task's dump folder.
"""

import inspect
import json
import os
import shutil
import stat
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from traceback import extract_tb
from types import ModuleType
from typing import Any
from warnings import catch_warnings, simplefilter

import jax
from jax.experimental import mesh_utils
from jax.extend import backend
from jax.sharding import Mesh, NamedSharding
from jax.stages import Compiled, Lowered

from rooflight.compile.aot.cache import cache_key, use
from rooflight.compile.aot.devices import target_mesh
from rooflight.compile.aot.duration import count_ops
from rooflight.compile.aot.environment import compiler_versions
from rooflight.compile.aot.request import ChildTask, read_task
from rooflight.compile.hlo.parse import is_installed

_CUDNN = 91_400  # 9.14, as wheels of CUDA 12 have it in 2026
_PARTITIONER = "tpu-spmd-partitioning"
_MEMORY = (
    *("argument_size_in_bytes", "output_size_in_bytes", "alias_size_in_bytes"),
    *("temp_size_in_bytes", "peak_memory_in_bytes", "generated_code_size_in_bytes"),
)
_SPLIT = "sdy.sharding"  # in the text of a program that says how anything is split
_COSTS = ("flops", "bytes accessed")


def main(path: str) -> int:
    """Builds, lowers, asks the cache, compiles."""
    threading.Thread(target=_end_with_parent, args=(Path(path),), daemon=True).start()
    task = read_task(Path(path))
    started = time.monotonic()
    try:
        lowered, mesh = _lower(task)
    except Exception as error:  # of the program: its own words and line are the answer
        _write(task, "result.json", {"not_built": _told(error)})
        raise
    kind = "tpu" if task.target.platform == "tpu" else "gpu"
    versions = compiler_versions(kind)
    key = cache_key(lowered.as_text(debug_info=True), task, versions)
    facts = {"key": key, "versions": versions, "axes": dict(mesh.shape), "dcn": task.target.dcn}
    results = [
        jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(lowered.out_info)
    ]
    facts |= {"results": results, "seconds": time.monotonic() - started}
    facts |= {"platform": task.target.platform, "until": task.request.until}
    facts |= {"chip": task.request.mesh.slice.chip.name}
    facts |= {"ops": count_ops(lowered.as_text()), "lowered_cpu_s": time.process_time()}
    _write(task, "lowered.json", facts)
    if use(task.cache / key):
        return 0
    try:
        compiled = lowered.compile(compiler_options=_options(task))
    except Exception as error:  # the compiler's own refusals are the answer, not a failure
        _write(task, "result.json", {"error": str(error), "kind": type(error).__name__})
        return 0
    costs = compiled.cost_analysis() or {}  # of a loop once; readers multiply by trip counts
    known = {name: float(costs[name]) for name in _COSTS if name in costs}
    _write(task, "result.json", {"memory": _memory(compiled), "costs": known})
    return 0


def _end_with_parent(task: Path) -> None:
    """A parent that is killed cannot end its children: the pipe to them closes, though."""
    if stat.S_ISFIFO(os.fstat(0).st_mode):
        os.read(0, 1)
        shutil.rmtree(task.parent, ignore_errors=True)
        os._exit(1)


def _lower(task: ChildTask) -> tuple[Lowered, Mesh]:
    build, folder = task.request.build, task.request.folder
    if folder:
        sys.path.insert(0, folder)
    mesh = target_mesh(task.target, explicit=task.request.explicit)
    _stand_for(mesh)
    if capability := task.request.mesh.slice.chip.detail.get("compute_capability"):
        _stand_for_cudnn(capability)
    module, _, name = build.partition(":")
    built = _build(getattr(_load(module, Path(folder)), name), mesh, task)
    if not isinstance(built, tuple) or len(built) != 2 or not callable(built[0]):
        raise TypeError(
            f"{build} must return (function, (argument, ...)), with arrays or"
            f" jax.ShapeDtypeStruct as arguments; it returned {_described(built)}"
        )
    function, arguments = built
    if not isinstance(arguments, (tuple, list)):
        arguments = (arguments,)
    jitted = function if hasattr(function, "lower") else jax.jit(function)
    places = (getattr(leaf, "sharding", None) for leaf in jax.tree.leaves(arguments))
    meshes = (place.mesh for place in places if isinstance(place, NamedSharding))
    # A builder may have placed its arguments on a mesh of its own.
    mesh = next((own for own in meshes if isinstance(own, Mesh)), mesh)
    _set(mesh)
    lowered = jitted.lower(*arguments)
    lowered = getattr(lowered, "lowered", lowered)  # flax.nnx.jit wraps that of jax
    if mesh.size > 1 and _SPLIT not in lowered.as_text():
        raise TypeError(
            f"no argument of {build} has a sharding, so every device would do the same: give"
            " jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, P(...))), or"
            " in_shardings to jax.jit"
        )
    return lowered, mesh


def _stand_for(mesh: Mesh) -> None:
    """Programs choose a kernel by `jax.devices()`: they are told of the slice, not of this host."""
    devices: list[Any] = list(mesh.devices.flat)
    platform = str(devices[0].platform)

    def instead(of: Callable[..., Any], told: Any) -> Callable[..., Any]:
        """What they hear, unless they ask for another platform by its name."""

        def asked(*given: Any, **more: Any) -> Any:
            names = [name for name in (*given, *more.values()) if isinstance(name, str)]
            return of(*given, **more) if {*names} - {platform} else told

        return asked

    jax.devices, jax.local_devices = (
        instead(of, devices) for of in (jax.devices, jax.local_devices)
    )
    jax.device_count, jax.local_device_count = (
        instead(of, len(devices)) for of in (jax.device_count, jax.local_device_count)
    )
    jax.make_mesh = partial(jax.make_mesh, devices=devices)
    placing = mesh_utils.create_device_mesh

    def place(shape: Any, devices: Any = devices, **more: Any) -> Any:
        return placing(shape, devices, **more)

    mesh_utils.create_device_mesh = place
    jax.default_backend = lambda: platform
    backend.get_default_device = lambda: devices[0]
    _set(mesh)


def _stand_for_cudnn(capability: float) -> None:
    """Attention of cuDNN is lowered by jax alone, which would ask a library and a GPU first."""
    cudnn: Any = import_module("jax._src.cudnn.fused_attention_stablehlo")

    def is_least(other: str) -> bool:
        return capability >= float(other)

    def is_equal(other: str) -> bool:
        return capability == float(other)

    cudnn.check_cudnn_version = lambda: _CUDNN
    cudnn.check_compute_capability = is_least
    cudnn.is_cuda_compute_capability_equal = is_equal


def _set(mesh: Mesh) -> None:
    """For those who ask for the mesh as jax now tells it, and as `with mesh:` told it."""
    with catch_warnings():
        simplefilter("ignore", DeprecationWarning)
        mesh.__enter__()
    jax.set_mesh(mesh)


def _build(build: Callable[..., Any], mesh: Mesh, task: ChildTask) -> Any:
    """Calls it with the mesh, or without if it takes none: the mesh is set in either case."""
    parameters = inspect.signature(build).parameters.values()
    if any(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters):
        return build(mesh, **task.request.arguments)
    return build(**task.request.arguments)


def _load(name: str, folder: Path) -> ModuleType:
    """A module; a file of its folder goes before what else has its name, such as `random`."""
    file = folder / f"{name}.py"
    if not file.is_file():
        return import_module(name)
    spec = spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules.setdefault(name, module)
    spec.loader.exec_module(module)
    return module


def _told(error: Exception) -> str:
    """An error with the innermost line outside installed packages, and the line that called it."""
    frames = [f"{frame.filename}:{frame.lineno}" for frame in extract_tb(error.__traceback__)]
    own = [frame for frame in reversed(frames) if not is_installed(frame)]
    where = f"{', called from '.join(own[:2])}: " if own else ""
    return f"{where}{type(error).__name__}: {error}".strip()


def _described(built: Any) -> str:
    if isinstance(built, tuple):
        return f"({', '.join(type(part).__name__ for part in built)})"
    return type(built).__name__


def _options(task: ChildTask) -> dict[str, Any]:  # Any: jax names only strings and flags
    return {
        "xla_dump_to": str(task.dump),
        "xla_dump_hlo_pass_re": _PARTITIONER,
        # The program may have set XLA_FLAGS for dumps of its own, as MaxText does.
        "xla_dump_hlo_module_re": ".*",
        "xla_dump_hlo_as_text": True,
        "xla_dump_hlo_to_subfolder": False,
        # Which part of an all-reduce a device keeps is looked up in a table as long as the mesh.
        "xla_dump_large_constants": task.request.until == "partitioned",
        **task.request.options,
    }


def _memory(compiled: Compiled) -> dict[str, int]:
    found = compiled.memory_analysis()
    return {name: int(getattr(found, name)) for name in _MEMORY if hasattr(found, name)}


def _write(task: ChildTask, name: str, facts: dict[str, Any]) -> None:
    """Whole or not at all: the parent looks while we write."""
    path = task.dump / name
    part = path.with_suffix(".part")
    part.write_text(json.dumps(facts))
    part.rename(path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
# jax annotates its own functions only in part.
"""One compile in a process of its own: `python -m rooflight.compile.aot.child TASK.json`.

The compiler may crash its process, and is stopped on purpose when it has written what was asked
for. The parent process reads `lowered.json` (the key of the result), `result.json` (written at
the end, error or not) and the compiler's dumps, all in the task's dump folder.
"""

import inspect
import json
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh
from jax.stages import Compiled, Lowered

from rooflight.compile.aot.cache import cache_key, use
from rooflight.compile.aot.devices import target_mesh
from rooflight.compile.aot.environment import compiler_versions
from rooflight.compile.aot.request import ChildTask, read_task

_PARTITIONER = "tpu-spmd-partitioning"
_MEMORY = (
    *("argument_size_in_bytes", "output_size_in_bytes", "alias_size_in_bytes"),
    *("temp_size_in_bytes", "peak_memory_in_bytes", "generated_code_size_in_bytes"),
)
_ONE_DEVICE = "mhlo.num_partitions = 1 "
_COSTS = ("flops", "bytes accessed")


def main(path: str) -> int:
    """Builds, lowers, asks the cache, compiles."""
    task = read_task(Path(path))
    started = time.monotonic()
    lowered, mesh = _lower(task)
    kind = "tpu" if task.target.platform == "tpu" else "gpu"
    versions = compiler_versions(kind)
    key = cache_key(lowered.as_text(debug_info=True), task, versions)
    facts = {"key": key, "versions": versions, "axes": dict(mesh.shape), "dcn": task.target.dcn}
    _write(task, "lowered.json", facts | {"seconds": time.monotonic() - started})
    if task.cache and use(Path(task.cache, key)):
        return 0
    try:
        compiled = lowered.compile(compiler_options=_options(task))
    except Exception as error:  # the compiler's own refusals are the answer, not a failure
        _write(task, "result.json", {"error": str(error), "kind": type(error).__name__})
        return 0
    _write(task, "result.json", {"memory": _memory(compiled), "costs": _costs(compiled)})
    return 0


def _lower(task: ChildTask) -> tuple[Lowered, Mesh]:
    if task.folder:
        sys.path.insert(0, task.folder)
    mesh = target_mesh(task.target)
    module, _, name = task.build.partition(":")
    built = _build(getattr(import_module(module), name), mesh, task)
    if not isinstance(built, tuple) or len(built) != 2 or not callable(built[0]):
        raise TypeError(
            f"{task.build} must return (function, (argument, ...)), with arrays or"
            f" jax.ShapeDtypeStruct as arguments; it returned {_described(built)}"
        )
    function, arguments = built
    if not isinstance(arguments, (tuple, list)):
        arguments = (arguments,)
    jitted = function if hasattr(function, "lower") else jax.jit(function)
    lowered = jitted.lower(*arguments)
    if mesh.size > 1 and _ONE_DEVICE in lowered.as_text():
        raise TypeError(
            f"no argument of {task.build} has a sharding, so it would run on one device: give"
            " jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, P(...))), or"
            " in_shardings to jax.jit"
        )
    return lowered, mesh


def _build(build: Callable[..., Any], mesh: Mesh, task: ChildTask) -> Any:
    """Calls it with the mesh, or without if it takes none: then the mesh is the one that is set."""
    parameters = inspect.signature(build).parameters.values()
    if any(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters):
        return build(mesh, **task.arguments)
    jax.set_mesh(mesh)
    return build(**task.arguments)


def _described(built: Any) -> str:
    if isinstance(built, tuple):
        return f"({', '.join(type(part).__name__ for part in built)})"
    return type(built).__name__


def _options(task: ChildTask) -> dict[str, Any]:  # Any: jax names only strings and flags
    return {
        "xla_dump_to": task.dump,
        "xla_dump_hlo_pass_re": _PARTITIONER,
        # Which part of an all-reduce a device keeps is looked up in a table as long as the mesh.
        "xla_dump_large_constants": task.until == "partitioned",
        **task.options,
    }


def _memory(compiled: Compiled) -> dict[str, int]:
    found = compiled.memory_analysis()
    return {name: int(getattr(found, name)) for name in _MEMORY if hasattr(found, name)}


def _costs(compiled: Compiled) -> dict[str, float]:
    """Loop bodies count once here; readers multiply by trip counts themselves."""
    costs = compiled.cost_analysis() or {}
    return {name: float(costs[name]) for name in _COSTS if name in costs}


def _write(task: ChildTask, name: str, facts: dict[str, Any]) -> None:
    """Whole or not at all: the parent looks while we write."""
    path = Path(task.dump, name)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(facts))
    part.rename(path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

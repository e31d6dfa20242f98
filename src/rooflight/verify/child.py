# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
# jax annotates its own functions only in part.
"""One compile in a process of its own: `python -m rooflight.verify.child TASK.json`.

The compiler may crash its process, and is stopped on purpose when it has written what was asked
for. Whoever starts this reads `lowered.json` (the key of the result), `result.json` (written at
the end, error or not) and the compiler's dumps, all in the task's dump folder.
"""

import json
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from jax.sharding import Mesh
from jax.stages import Compiled, Lowered

from rooflight.verify.cache import cache_key
from rooflight.verify.devices import target_mesh
from rooflight.verify.environment import compiler_versions
from rooflight.verify.request import ChildTask, read_task

_PARTITIONER = "tpu-spmd-partitioning"
_MEMORY = (
    *("argument_size_in_bytes", "output_size_in_bytes", "alias_size_in_bytes"),
    *("temp_size_in_bytes", "peak_memory_in_bytes", "generated_code_size_in_bytes"),
)
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
    if task.cache and Path(task.cache, key).exists():
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
    module, _, function = task.build.partition(":")
    build = cast(
        Callable[..., tuple[Any, tuple[Any, ...]]], getattr(import_module(module), function)
    )
    jitted, arguments = build(mesh, **task.arguments)
    return jitted.lower(*arguments), mesh


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

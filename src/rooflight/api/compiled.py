"""The compiler's word: the program of a plan, any function of one's own, and dumps of XLA."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rooflight.api.values import slice_of
from rooflight.compile.aot.cache import cache_folder
from rooflight.compile.aot.environment import find_compiler
from rooflight.compile.aot.program import ProgramVerdict, parse_build, verify_program
from rooflight.compile.aot.run import Watch
from rooflight.compile.aot.target import device_axes, make_target
from rooflight.compile.findings.verify import Until, Verdict
from rooflight.compile.findings.verify import verify as verify_plan
from rooflight.compile.hlo.dump import choose_dump, find_dumps, read_dump
from rooflight.compile.hlo.step import CompiledStep
from rooflight.errors import UsageError
from rooflight.hardware.mesh import mesh_of
from rooflight.hardware.slice import Slice
from rooflight.plan.file.record import Plan
from rooflight.program.from_plan.served_step import ServedStep


def verify(
    plan: Plan | ServedStep,
    *,
    until: Until = "partitioned",
    compiler: str = "",
    watch: Watch | None = None,
) -> Verdict:
    """Compiles the program of a plan for its slice, no chip attached, and says what is odd.

    `compiler` is the Python, or the environment, of another jax with libtpu, or, for GPUs, with the
    CUDA plugin.
    """
    python = find_compiler(compiler, plan.placed().slice.chip.kind) if compiler else ""
    return verify_plan(plan, until=until, python=python, watch=watch)


def verify_function(
    function: str | Callable[..., Any],
    *arguments: Any,
    on: str | Slice,
    mesh: Any = None,
    explicit: bool = False,
    shardings: Any = None,
    until: Until = "scheduled",
    compiler: str = "",
    watch: Watch | None = None,
) -> ProgramVerdict:
    """Compiles any function for a slice, no chip attached, and says what it could do without.

    Arguments are arrays or `jax.ShapeDtypeStruct`; `shardings` has a `PartitionSpec` for each, over
    the axes of `mesh`: text such as `X=4,Y=2`, whose axes may be `explicit`, or a mesh of jax,
    which says so itself. Text such as `steps.py:build` names a function that returns both; then
    `compiler` may be the Python, or the environment, of another jax and libtpu.

    >>> from jax import ShapeDtypeStruct
    >>> from jax.sharding import PartitionSpec as P
    >>> x, split = ShapeDtypeStruct((1024, 1024), "bfloat16"), (P(None, "X"), P("X"))
    >>> seen = verify_function(lambda a, b: a @ b, x, x, on="v5e:2x2", mesh="X=4", shardings=split)
    >>> [f.words for f in seen.findings]
    ['bf16[1024,1024] is returned whole over X, which splits a (all-reduce)']
    """
    if hasattr(mesh, "axis_types"):
        explicit = any(kind.name == "Explicit" for kind in mesh.axis_types)
        mesh = ",".join(f"{axis}={size}" for axis, size in mesh.shape.items())
    placed = mesh_of(mesh, slice_of(on))
    asked = partial(verify_program, mesh=placed, until=until, explicit=explicit, watch=watch)
    if isinstance(function, str):
        build, folder = parse_build(function)
        python = find_compiler(compiler, placed.slice.chip.kind) if compiler else ""
        return asked(build, folder=folder, python=python)
    if compiler:
        raise UsageError(
            "a function of this process is traced by its own jax, and no other compiler's",
            hint="name it, as steps.py:build, to have another environment build it",
        )
    from rooflight.compile.aot.traced import (
        BUILD,
        abstract_mesh,
        write_traced,
    )  # only here: it imports jax

    axes, platform = device_axes(placed), make_target(placed).platform
    store = cache_folder()
    store.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=store) as folder:
        traced = Path(folder, "traced")
        types = abstract_mesh(axes, explicit=explicit)
        write_traced(traced, function, arguments, shardings, mesh=types, platform=platform)
        found = asked(BUILD, arguments={"path": str(traced)})
    return replace(found, build=getattr(function, "__name__", "function"))


def build_train_step(plan: Plan) -> tuple[Any, tuple[Any, ...]]:
    """The jitted step of a plan and its abstract arguments, on this process's devices (needs jax).

    The mesh has the plan's axes and stays set, as `jax.set_mesh` leaves it.
    """
    from rooflight.program.from_plan.train import build_here  # plans are made without jax

    return build_here(plan)


def read_hlo(path: str | Path, *, module: str | None = None) -> CompiledStep:
    """Collectives, loops, matmuls and memory of a file, or of a folder of `--xla_dump_to`."""
    where = Path(path)
    return read_dump(choose_dump(find_dumps(where), module=module, where=where))

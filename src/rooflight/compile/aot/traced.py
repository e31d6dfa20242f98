# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
# jax annotates its own functions only in part.
"""A function of any process: traced there for a mesh of no devices, compiled in a child process.

In: a function, its arguments and how they are split. Out: a file that `build` reads in the child.
"""

import inspect
import pickle
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
from jax import export
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

BUILD = "rooflight.compile.aot.traced:build"


def abstract_mesh(axes: Mapping[str, int], *, explicit: bool) -> AbstractMesh:
    """A mesh of no devices."""
    kind = AxisType.Explicit if explicit else AxisType.Auto
    return AbstractMesh(tuple(axes.values()), tuple(axes), axis_types=(kind,) * len(axes))


def write_traced(
    path: Path,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    shardings: Any,
    *,
    mesh: AbstractMesh,
    platform: str,
) -> None:
    """Traces a function; `shardings` are specs of the arguments, or of whole subtrees of them.

    Without them arguments are split as their own shardings say.
    """
    specs = jax.tree.map(_spec, arguments)
    if shardings is not None:
        specs = jax.tree.broadcast(shardings, arguments, is_leaf=_is_spec)
    with jax.sharding.use_abstract_mesh(mesh):
        jitted: Any = function if hasattr(function, "lower") else jax.jit(function)
        placed = _placed(arguments, specs, mesh)
        exported = export.export(jitted, platforms=[platform])(*placed)
        told, _ = jitted.trace(*placed).args_info
    names = [*inspect.signature(function).parameters][: len(arguments)]
    # Its own `serialize` needs one more package; the derivative cannot be written and is not asked.
    plain = replace(exported, _get_vjp=None)
    donated = [at for at, tree in enumerate(told) if any(i.donated for i in jax.tree.leaves(tree))]
    path.write_bytes(pickle.dumps((plain, names, specs, donated)))


def build(mesh: Mesh, *, path: str) -> tuple[Any, tuple[Any, ...]]:
    """The traced function over the devices of a target. Runs in a child process."""
    exported, names, specs, donated = pickle.loads(Path(path).read_bytes())  # our parent wrote it

    def call(*arguments: Any) -> Any:
        return exported.call(*arguments)

    kind = inspect.Parameter.POSITIONAL_ONLY
    call.__signature__ = inspect.Signature([inspect.Parameter(n, kind) for n in names])
    call.__name__ = exported.fun_name
    shapes, _ = jax.tree.unflatten(exported.in_tree, exported.in_avals)
    return jax.jit(call, donate_argnums=donated), _placed(shapes, specs, mesh)


def _is_spec(node: Any) -> bool:
    return node is None or isinstance(node, PartitionSpec)


def _spec(argument: Any) -> PartitionSpec:
    sharding = getattr(argument, "sharding", None)
    return sharding.spec if isinstance(sharding, NamedSharding) else PartitionSpec()


def _placed(arguments: Any, specs: Any, mesh: Mesh | AbstractMesh) -> Any:
    def place(spec: PartitionSpec | None, argument: Any) -> jax.ShapeDtypeStruct:
        sharding = NamedSharding(mesh, spec or PartitionSpec())
        return jax.ShapeDtypeStruct(argument.shape, argument.dtype, sharding=sharding)

    return jax.tree.map(place, specs, arguments, is_leaf=_is_spec)

# pyright: reportUnknownParameterType=false, reportUnknownVariableType=false
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# jax annotates its own functions only in part.
"""A program with the edits of a finding made to it, each just as it says, and nothing else.

In: a builder, and `Edit`s as plain data. Out: what the builder returns, edited: arguments get their
specs, results theirs, parameters are donated, the constraint of a line is left out or gets another.
"""

import functools
import inspect
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec


def build(
    mesh: Mesh, *, program: str, arguments: dict[str, Any], edits: Sequence[dict[str, Any]]
) -> tuple[Any, tuple[Any, ...]]:
    """The program of `program`, edited."""
    _edit_constraints([e for e in edits if "constraint" in e["kind"]])
    module, _, name = program.partition(":")
    function, given = getattr(import_module(module), name)(mesh, **arguments)
    names = _names(function, len(given))
    specs = {e["target"]: _spec(e) for e in edits if e["kind"] == "argument"}
    given = tuple(
        _respecified(tree, specs, mesh, root) for root, tree in zip(names, given, strict=True)
    )
    donated = [e["target"] for e in edits if e["kind"] == "donate"]
    results = {e["target"]: _spec(e) for e in edits if e["kind"] == "result"}
    if donated:
        function = _donated(function, donated)
    if results:
        function = _returned(function, given, results, mesh)
    return function, given


def _names(function: Any, count: int) -> list[str]:
    """Of its arguments, as jax says them: those of `*args` are `args[0]` and so on."""
    names = list[str]()
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            return names + [f"{name}[{at}]" for at in range(count - len(names))]
        names.append(name)
    return names[:count]


def _spec(edit: dict[str, Any]) -> PartitionSpec:
    return PartitionSpec(*(tuple(dim) or None for dim in edit["spec"]))


def _respecified(tree: Any, specs: dict[str, PartitionSpec], mesh: Mesh, root: str = "") -> Any:
    """Leaves of an argument whose path has a spec, on that."""

    def leaf(path: Any, value: Any) -> Any:
        spec = specs.get(root + jax.tree_util.keystr(path))
        if spec is None:
            return value
        place = NamedSharding(mesh, spec)
        return jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=place)

    return jax.tree_util.tree_map_with_path(leaf, tree)


def _donated(function: Any, names: Sequence[str]) -> Any:
    """`donate_argnames` around it: what is inside keeps the results where they were."""

    @functools.wraps(function)
    def same(*arguments: Any) -> Any:
        return function(*arguments)

    return jax.jit(same, donate_argnames=tuple(names))


def _returned(
    function: Any, given: tuple[Any, ...], specs: dict[str, PartitionSpec], mesh: Mesh
) -> Any:
    """The same function with other `out_shardings`; what was donated still is."""
    info = jax.tree.leaves(function.lower(*given).args_info[0], is_leaf=_is_info)
    counts = [len(jax.tree.leaves(tree)) for tree in given]
    starts = [sum(counts[:at]) for at in range(len(counts))]
    donated = [at for at, start in enumerate(starts) if info[start].donated]

    def place(path: Any, value: Any) -> Any:
        spec = specs.get(jax.tree_util.keystr(path))
        return None if spec is None else NamedSharding(mesh, spec)

    like = jax.eval_shape(function, *given)
    places = jax.tree_util.tree_map_with_path(place, like)
    return jax.jit(function.__wrapped__, out_shardings=places, donate_argnums=donated)


def _is_info(leaf: Any) -> bool:
    return hasattr(leaf, "donated")


def _edit_constraints(edits: Sequence[dict[str, Any]]) -> None:
    """The call of a line hands its value on, or takes another spec; this process ends with it."""
    lines = {edit["target"]: edit for edit in edits}

    def edited(constrain: Any) -> Any:
        def call(x: Any, place: Any, *rest: Any, **more: Any) -> Any:
            found = next((lines[at] for at in _stack() if at in lines), None)
            if found is None:
                return constrain(x, place, *rest, **more)
            return x if found["kind"] == "no constraint" else constrain(x, _spec(found))

        return call

    jax.lax.with_sharding_constraint = edited(jax.lax.with_sharding_constraint)
    jax.reshard = edited(jax.reshard)


def _stack() -> list[str]:
    frame, found = inspect.currentframe(), list[str]()
    while frame:
        found.append(f"{frame.f_code.co_filename}:{frame.f_lineno}")
        frame = frame.f_back
    return found

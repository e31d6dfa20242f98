"""The notation as jax types, and maps inside a stage of a pipeline, with a gradient.

    A[I_X,J]{U_Y}     is P("X", None, unreduced={"Y"})
    y = f(x)          of one stage, x[B_X,T,D]: what is written
    y = map of f      of all stages, x[S_P,B_X,T,D]: what is run, a map over P and X alike

Stages are rows of arrays, and a map over all axes but P would have no types for pending sums. So
the rule for many stages at once is written here: one map over all axes, in which a device has one
row. Its gradient saves nothing but inputs and makes the rest again, in another such map.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any  # pytrees of arrays

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_batching import custom_vmap
from jax.sharding import AbstractMesh, AxisType, Mesh, PartitionSpec

from rooflight.algebra.notation import Axes, Tensor
from rooflight.program.varying import axes_by_dim, vary, varying_axes


def nested_map(
    local: Callable[..., Any], in_specs: tuple[Any, ...], out_specs: Any, stages: Axes
) -> Callable[..., Any]:
    """`jax.shard_map`, a row for each of the `stages`; operands of a float type get gradients."""
    results, shape = jax.tree.flatten(out_specs)

    @jax.custom_vjp
    def run(*operands: Any) -> Any:
        return _by_stage(local, in_specs, out_specs, stages)(*operands)

    def forward(*operands: Any) -> tuple[Any, tuple[Any, ...]]:
        return run(*operands), operands

    def backward(operands: tuple[Any, ...], cotangents: Any) -> tuple[Any, ...]:
        at = [i for i, x in enumerate(operands) if x is not None and _is_float(x)]
        flat = jax.tree.leaves(cotangents)
        given = [i for i, x in enumerate(flat) if x.dtype != jax.dtypes.float0]

        def pull(*arrays: Any) -> list[Any]:
            operands, cotangents = arrays[: len(in_specs)], arrays[len(in_specs) :]

            def of_floats(*floats: Any) -> Any:
                chosen = dict(zip(at, floats, strict=True))
                return local(*(chosen.get(i, x) for i, x in enumerate(operands)))

            out, back = jax.vjp(of_floats, *(operands[i] for i in at))
            whole = [np.zeros(x.shape, jax.dtypes.float0) for x in jax.tree.leaves(out)]
            for i, x in zip(given, cotangents, strict=True):
                whole[i] = vary(x, results[i].unreduced)
            return list(back(jax.tree.unflatten(shape, whole)))

        specs = (*in_specs, *(_transposed(results[i]) for i in given))
        found = _by_stage(pull, specs, [_transposed(in_specs[i]) for i in at], stages)(
            *operands, *(flat[i] for i in given)
        )
        gradients = dict(zip(at, found, strict=True))
        return tuple(gradients.get(i) for i in range(len(operands)))

    run.defvjp(forward, backward)
    return run


def _by_stage(
    local: Callable[..., Any], in_specs: tuple[Any, ...], out_specs: Any, stages: Axes
) -> Callable[..., Any]:
    """A map of one stage, or, where `jax.vmap` asks for it, of a row of them."""

    @custom_vmap
    def run(*operands: Any) -> Any:
        return _alone(local, in_specs, out_specs, operands)

    @run.def_vmap
    def of_stages(size: int, is_stacked: list[bool], *operands: Any) -> tuple[Any, Any]:
        del size

        def one(*rows: Any) -> Any:
            mine = map(_row, rows, in_specs, is_stacked)
            found = local(*(x if x is None else vary(x, stages) for x in mine))
            return jax.tree.map(lambda x: lax.expand_dims(x, (0,)), found)

        pairs = zip(in_specs, is_stacked, strict=True)
        specs = tuple(_stacked(s, stages) if stacked else s for s, stacked in pairs)
        every = jax.tree.map(lambda spec: _stacked(spec, stages), out_specs)
        found = jax.shard_map(one, in_specs=specs, out_specs=every)(*operands)
        return found, jax.tree.map(lambda _: True, found)

    return run


def _row(x: Any, spec: Any, is_stacked: bool) -> Any:
    """What a device has of an operand, with every sum of its gradient left to the outside."""
    if x is None:
        return None
    return vary(lax.squeeze(x, (0,)) if is_stacked else x, spec.reduced)


def _alone(
    local: Callable[..., Any], in_specs: tuple[Any, ...], out_specs: Any, operands: tuple[Any, ...]
) -> Any:
    """The map of one stage, without pending sums inside; `jax.vmap` reads its types off this."""

    def summed(spec: PartitionSpec, x: jax.Array) -> jax.Array:
        axes = tuple(spec.unreduced & varying_axes(x))
        return lax.psum(x, axes) if axes else x

    def one(*operands: Any) -> Any:
        return jax.tree.map(summed, out_specs, local(*operands))

    specs = tuple(None if s is None else _plain(s) for s in in_specs)
    plain = tuple(
        None if x is None else jax.reshard(x, s) for x, s in zip(operands, specs, strict=True)
    )
    found = jax.shard_map(one, in_specs=specs, out_specs=jax.tree.map(_plain, out_specs))(*plain)
    return jax.tree.map(jax.reshard, found, out_specs)


def _plain(spec: PartitionSpec) -> PartitionSpec:
    return PartitionSpec(*axes_by_dim(spec))


def _stacked(spec: PartitionSpec, stages: Axes) -> PartitionSpec:
    return PartitionSpec(stages, *axes_by_dim(spec), unreduced=spec.unreduced, reduced=spec.reduced)


def _transposed(spec: PartitionSpec) -> PartitionSpec:
    """Of a gradient: what is the same along an axis has a gradient that is a sum over it."""
    return PartitionSpec(*axes_by_dim(spec), unreduced=spec.reduced, reduced=spec.unreduced)


def _is_float(x: jax.Array) -> bool:
    return jnp.issubdtype(x.dtype, jnp.floating)


def spec_of(
    tensor: Tensor, *, reduced: Iterable[str] = (), stacked: Axes | None = None
) -> PartitionSpec:
    """The partition spec of a tensor, after a leading dim of layers split over `stacked`.

    `reduced` names axes along which the tensor is the same everywhere and its gradient is to be
    left a pending sum: jax then types the gradient `{U_X}` and takes the sum where we say so.

    >>> from rooflight.algebra.notation import parse_tensor
    >>> found = spec_of(parse_tensor("A[I_XY,J]{U_Z}"))
    >>> found == PartitionSpec(("X", "Y"), None, unreduced={"Z"})
    True
    """
    every = tensor.axes if stacked is None else (stacked, *tensor.axes)
    entries = [axes[0] if len(axes) == 1 else axes or None for axes in every]
    return PartitionSpec(
        *entries, unreduced=frozenset(tensor.unreduced), reduced=frozenset(reduced)
    )


def map_blocks(
    local: Callable[..., Any],
    in_specs: tuple[Any, ...],
    out_specs: Any,
    *,
    stages: Axes = (),
    check_vma: bool = True,
) -> Callable[..., Any]:
    """`jax.shard_map` over every axis but those of pipeline `stages`.

    Pallas kernels do not say over which axes their results vary; a map of one cannot check it.
    """
    if stages:
        return nested_map(local, in_specs, out_specs, stages)
    return jax.shard_map(local, in_specs=in_specs, out_specs=out_specs, check_vma=check_vma)


def device_mesh(axes: Mapping[str, int], devices: Sequence[Any] | None = None) -> Mesh:
    """A mesh of explicit axes over the given devices, the first ones if there are more."""
    chosen = (jax.devices() if devices is None else list(devices))[: math.prod(axes.values())]
    return jax.make_mesh(tuple(axes.values()), tuple(axes), devices=chosen)


def abstract_mesh(axes: Mapping[str, int]) -> AbstractMesh:
    """The same mesh without devices: enough to trace and to lower."""
    kinds = (AxisType.Explicit,) * len(axes)
    return AbstractMesh(tuple(axes.values()), tuple(axes), axis_types=kinds)

"""The notation as jax types: `A[I_X,J]{U_Y}` is `P("X", None, unreduced={"Y"})`.

In: tensors of the algebra. Out: partition specs and meshes.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any  # pytrees, and devices of real or described topologies

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh, PartitionSpec

from rooflight.algebra.notation import Axes, Tensor
from rooflight.program.nested_map import nested_map


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

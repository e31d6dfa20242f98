"""One derivation, many meshes: the price of a strategy on every placement of its axes at once.

In: a `Strategy` derived once for its pattern, and a `MeshSweep` of M meshes as numpy arrays. Out:
arrays of M times. The formulas are those of `torus` and `switched`; a test holds every element
against the scalar price.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt

from rooflight.algebra import Step, Strategy
from rooflight.costs.mesh_sweep import MeshSweep
from rooflight.costs.rates import collective_rate
from rooflight.costs.roofline import memory_bytes_per_s
from rooflight.dtypes import Dtype

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SweepTimes:
    """Seconds of one strategy on every mesh; infinite where the dims do not divide."""

    local_s: Floats
    network_s: Floats
    expected_s: Floats


def sweep(
    strategy: Strategy, meshes: MeshSweep, *, dims: Mapping[str, int], dtype: Dtype
) -> SweepTimes:
    """Prices one strategy on every mesh, by the rules of `choose.price`."""
    local_s, network_s, streamed_s = (np.zeros(meshes.count) for _ in range(3))
    for step in strategy.steps:
        seconds = sweep_step(step, meshes, dims=dims, dtype=dtype)
        if step.op == "einsum":
            local_s = local_s + seconds
        else:
            network_s = network_s + seconds
        if strategy.streams(step):
            streamed_s = streamed_s + seconds
    expected_s = np.maximum(local_s, streamed_s) + network_s - streamed_s
    whole = divides(strategy.steps, meshes, dims=dims)
    return SweepTimes(local_s, network_s, np.where(whole, expected_s, np.inf))


def divides(
    steps: Iterable[Step], meshes: MeshSweep, *, dims: Mapping[str, int]
) -> npt.NDArray[np.bool_]:
    """On which meshes every block of every tensor is whole."""
    splits = {
        (d, axes)
        for step in steps
        for t in (*step.inputs, step.output)
        for d, axes in zip(t.dims, t.axes, strict=True)
        if axes
    }
    whole = np.ones(meshes.count, np.bool_)
    for dim, axes in splits:
        whole &= dims[dim] % math.prod(meshes.ways(a) for a in axes) == 0
    return whole


def sweep_step(step: Step, meshes: MeshSweep, *, dims: Mapping[str, int], dtype: Dtype) -> Floats:
    """Seconds of one step on every mesh: a product by its roofline, a collective as expected."""
    ways = {axis: meshes.ways(axis) for axis in meshes.sizes}
    zero = np.zeros(meshes.count)
    if step.op == "slice":
        return zero
    bytes_each = dtype.bits_per_element / 8
    if step.op == "einsum":
        return zero + _product_seconds(step, meshes, ways, dims, dtype)
    rate = collective_rate(step.op, step.axes, meshes)
    return rate.seconds(zero + _elements(step, dims, ways) * bytes_each)


def _elements(step: Step, dims: Mapping[str, int], ways: Mapping[str, Ints]) -> Floats:
    """`Step.elements` needs only products and quotients, so it takes arrays of sizes as well."""
    return np.asarray(step.elements(dims, cast(Mapping[str, int], ways)), np.float64)


def _product(axes: Sequence[str] | set[str], ways: Mapping[str, Ints]) -> Floats:
    result = np.ones(len(next(iter(ways.values()))))
    for axis in axes:
        result = result * ways[axis]
    return result


def _product_seconds(
    step: Step,
    meshes: MeshSweep,
    ways: Mapping[str, Ints],
    dims: Mapping[str, int],
    dtype: Dtype,
) -> Floats:
    """The roofline of the local product: FLOPs or HBM, whichever is slower."""
    chip = meshes.slice.chip
    flops_s = 2 * _elements(step, dims, ways) / chip.peak_flops(chip.matmul_dtype(dtype.name))
    moved = sum(
        math.prod(dims[d] for d in t.dims) / _product(t.sharded_over, ways)
        for t in (*step.inputs, step.output)
    )
    return np.maximum(flops_s, moved * dtype.bits_per_element / 8 / memory_bytes_per_s(chip))

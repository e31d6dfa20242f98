"""One derivation, many meshes: the price of a strategy on every placement of its axes at once.

In: a `Strategy` derived once for its pattern, and a `MeshSweep` of M meshes as numpy arrays. Out:
arrays of M times. The formulas are those of `torus` and `switched`; a test holds every element
against the scalar price.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import cast

import numpy as np
import numpy.typing as npt

from rooflight.algebra import Step, Strategy
from rooflight.costs.roofline import memory_bytes_per_s
from rooflight.dtypes import Dtype
from rooflight.specs.mesh import Mesh, Segment
from rooflight.specs.slice import PhysicalDim, Slice, SwitchDim, TorusDim

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class MeshSweep:
    """M meshes with the same axis names on one slice: sizes[axis][dim] is an array of M."""

    slice: Slice
    sizes: Mapping[str, Mapping[str, Ints]]

    @property
    def count(self) -> int:
        return len(next(iter(next(iter(self.sizes.values())).values())))

    def ways(self, axis: str) -> Ints:
        """Size of an axis in every mesh."""
        return math.prod(self.sizes[axis].values(), start=np.ones(self.count, np.int64))

    def stride(self, axis: str, dim: str) -> Ints:
        """Chips between neighbours: what the axes nested inside this one take of the dim."""
        names = list(self.sizes)
        inner = names[names.index(axis) + 1 :]
        return math.prod((self.sizes[a][dim] for a in inner), start=np.ones(self.count, np.int64))

    def only(self, chosen: npt.NDArray[np.bool_]) -> "MeshSweep":
        """The meshes at which `chosen` is true."""
        rows = self.sizes.items()
        return MeshSweep(self.slice, {a: {d: n[chosen] for d, n in r.items()} for a, r in rows})

    def mesh(self, index: int) -> Mesh:
        """One of the meshes as a record."""
        segments = {
            axis: tuple(
                Segment(dim, int(sizes[index]), int(self.stride(axis, dim)[index]))
                for dim, sizes in parts.items()
                if sizes[index] > 1
            )
            for axis, parts in self.sizes.items()
        }
        return Mesh(self.slice, segments)


def every_mesh(axes: Sequence[str], on: Slice) -> MeshSweep:
    """Every way to share out each physical dim among the axes, outer axes first.

    >>> from rooflight.specs import parse_slice
    >>> every_mesh(("X", "Y", "Z"), parse_slice("v5p:16x20x28")).count
    4860
    """
    dims = [d for d in on.dims if d.size > 1] or on.dims[:1]
    parts = [np.array(list(_factorings(d.size, len(axes))), np.int64) for d in dims]
    rows = np.indices([len(p) for p in parts]).reshape(len(parts), -1)
    return MeshSweep(
        on,
        {
            axis: {d.name: parts[j][rows[j], i] for j, d in enumerate(dims)}
            for i, axis in enumerate(axes)
        },
    )


def _factorings(size: int, parts: int) -> Iterator[tuple[int, ...]]:
    """Every ordered product of `parts` whole numbers that is `size`."""
    if parts == 1:
        yield (size,)
        return
    for first in range(1, size + 1):
        if size % first == 0:
            for rest in _factorings(size // first, parts - 1):
                yield (first, *rest)


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


@dataclass(frozen=True, slots=True)
class Rate:
    """Seconds of a collective on every mesh: proportional to V, and a latency."""

    seconds_per_byte: Floats
    latency_s: Floats

    def seconds(self, nbytes: Floats) -> Floats:
        return nbytes * self.seconds_per_byte + self.latency_s


def collective_rate(op: str, axes: Sequence[str], meshes: MeshSweep) -> Rate:
    """What a collective over a group costs, whatever its bytes: many steps share it."""
    extents = _group(meshes, axes)
    one = np.ones(meshes.count)
    if op == "permute":  # priced as an exchange of everything, as `choose` does
        rate = _rate_of("all_to_all", one, extents, meshes)
        size = math.prod((meshes.ways(a) for a in axes), start=one)
        return Rate(rate.seconds_per_byte * size, rate.latency_s)
    return _rate_of(op, one, extents, meshes)


def shift_rate(axes: Sequence[str], meshes: MeshSweep) -> Rate:
    """Every chip of a group sends V bytes to the next, as `torus.shift_time` has it."""
    extents = _group(meshes, axes)
    rings = [e for e in extents if isinstance(e.dim, TorusDim)]
    zero = np.zeros(meshes.count)
    loads, latency = [zero], zero
    for ring in rings:
        assert isinstance(ring.dim, TorusDim)
        ways = np.where(ring.wraps & (ring.size == 2), 2, 1)
        loads.append(np.where(ring.size > 1, ring.stride / (ways * ring.dim.link_bytes_per_s), 0))
        hops = np.where(ring.wraps, 1, ring.size - 1) * ring.stride
        latency = latency + np.where(ring.size > 1, hops * ring.dim.hop_s, 0.0)
    tiers = [zero]
    for fan in (e for e in extents if isinstance(e.dim, SwitchDim)):
        assert isinstance(fan.dim, SwitchDim)
        used = fan.size > 1
        tiers.append(np.where(used, fan.dim.unit_chips / fan.dim.egress_bytes_per_s, 0.0))
        latency = latency + np.where(used, fan.dim.hop_s, 0.0)
    outer = sum(tiers, zero) if meshes.slice.chip.torus else np.max(tiers, axis=0)
    return Rate(np.max(loads, axis=0) + outer, latency)


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


@dataclass(frozen=True, slots=True)
class _Extent:
    """A group's extent along one physical dim in every mesh, 1 where it has none."""

    dim: PhysicalDim
    size: Floats
    stride: Floats
    shared: Floats  # extents of the group on this dim, which share its links

    @property
    def wraps(self) -> npt.NDArray[np.bool_]:
        whole = self.size * self.stride == self.dim.size
        return whole & (isinstance(self.dim, TorusDim) and self.dim.wraps)


def _group(meshes: MeshSweep, axes: Sequence[str]) -> list[_Extent]:
    """The extents of a set of axes: parts of a dim that continue each other are one."""
    names = [a for a in meshes.sizes if a in axes]
    extents: list[_Extent] = []
    for dim in meshes.slice.dims:
        if dim.size > 1:
            parts = _joined(meshes, names, dim)
            shared = np.maximum(1, sum((size > 1).astype(float) for size, _ in parts))
            extents += [_Extent(dim, size, stride, shared) for size, stride in parts]
    return [e for e in extents if (e.size > 1).any()]


def _joined(meshes: MeshSweep, names: list[str], dim: PhysicalDim) -> list[tuple[Floats, Floats]]:
    """Sizes and strides along one dim, outer first, each part joined to the next where it can."""
    parts: list[tuple[Floats, Floats]] = []
    for name in names:
        size = meshes.sizes[name][dim.name].astype(float)
        stride = meshes.stride(name, dim.name).astype(float)
        if parts:
            before, before_stride = parts[-1]
            empty = size == 1
            follows = before_stride == stride * size
            joins = empty | (before == 1) | follows | isinstance(dim, SwitchDim)
            stride = np.where(empty, before_stride, stride)
            size = np.where(joins, size * before, size)
            parts[-1] = (np.where(joins, 1.0, before), before_stride)
        parts.append((size, stride))
    return parts


def _rate_of(op: str, nbytes: Floats, extents: list[_Extent], meshes: MeshSweep) -> Rate:
    rings = [e for e in extents if isinstance(e.dim, TorusDim)]
    fans = [e for e in extents if isinstance(e.dim, SwitchDim)]
    twice = 2 if op == "all_reduce" else 1
    exchange = op == "all_to_all"
    inside = nbytes
    if exchange:
        inside = nbytes / math.prod((f.size for f in fans), start=np.ones_like(nbytes))
    torus = (_exchange if exchange else _gather)(inside, rings) if rings else np.zeros_like(nbytes)
    latency = sum((_flight(r) for r in rings), np.zeros_like(nbytes))
    tiers = [_tier(nbytes, f, extents, exchange=exchange) for f in fans]
    latency += sum((np.where(f.size > 1, f.dim.hop_s, 0.0) for f in fans), np.zeros_like(nbytes))
    if meshes.slice.chip.torus:
        return Rate(twice * (torus + sum(tiers, np.zeros_like(nbytes))), twice * latency)
    slowest = np.max(tiers, axis=0) if tiers else np.zeros_like(nbytes)
    return Rate(twice * slowest, twice * latency)


def _rate(ring: _Extent) -> Floats:
    assert isinstance(ring.dim, TorusDim)
    return (1 + ring.wraps) * ring.dim.link_bytes_per_s / ring.shared / ring.stride


def _flight(ring: _Extent) -> Floats:
    hops = np.where(ring.wraps, ring.size // 2, ring.size - 1)
    return hops * ring.stride * ring.dim.hop_s


def _gather(nbytes: Floats, rings: list[_Extent]) -> Floats:
    chips = math.prod(r.size for r in rings)
    worst = np.zeros_like(nbytes)
    for count in range(1, len(rings) + 1):
        for chosen in combinations(rings, count):
            # an extent of one chip carries nothing and must lend no bandwidth
            rate = sum(np.where(r.size > 1, _rate(r), 0.0) for r in chosen)
            gathered = math.prod(r.size for r in chosen) - 1
            seconds = nbytes * gathered / chips / np.where(rate > 0, rate, 1.0)
            worst = np.maximum(worst, seconds)
    return worst


def _exchange(nbytes: Floats, rings: list[_Extent]) -> Floats:
    chips = math.prod(r.size for r in rings)
    loads = [nbytes * (r.size**2 // 4) / (r.size * chips * _rate(r)) for r in rings]
    return np.max(loads, axis=0)


def _tier(nbytes: Floats, fan: _Extent, extents: list[_Extent], *, exchange: bool) -> Floats:
    assert isinstance(fan.dim, SwitchDim)
    below = [e for e in extents if _unit(e.dim) < fan.dim.unit_chips]
    members = math.prod((e.size for e in below), start=np.ones_like(nbytes))
    rate = fan.dim.egress_bytes_per_s * members / fan.dim.unit_chips
    if not exchange:
        return nbytes * (fan.size - 1) / fan.size / rate
    outer = [e for e in extents if _unit(e.dim) >= fan.dim.unit_chips]
    units = math.prod((e.size for e in outer), start=np.ones_like(nbytes))
    return np.where(fan.size > 1, nbytes / (units * rate) * (1 - 1 / units), 0.0)


def _unit(dim: PhysicalDim) -> int:
    return dim.unit_chips if isinstance(dim, SwitchDim) else 0

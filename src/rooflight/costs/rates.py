"""What a collective costs on every mesh of a sweep: seconds per byte, and a latency.

In: a collective, its axes and a `MeshSweep`. Out: `TierRates`, which tell near links from far ones.
The formulas are those of `torus` and `switched`; a test holds every element against the scalar
price.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rooflight.costs.mesh_sweep import Bools, Floats, Ints, MeshSweep
from rooflight.hardware.mesh import FAR
from rooflight.hardware.slice import PhysicalDim, SwitchDim, TorusDim


def _shift_tiers(extents: list["_Extent"], one: Floats) -> "_Tiers":
    rings = [e for e in extents if isinstance(e.dim, TorusDim)]
    zero = np.zeros_like(one)
    loads, latency = [zero], zero
    for ring in rings:
        assert isinstance(ring.dim, TorusDim)
        ways = np.where(ring.wraps & (ring.size == 2), 2, 1)
        link = ring.dim.link_bytes_per_s / ring.shared
        loads.append(np.where(ring.size > 1, ring.stride / (ways * link), 0))
        hops = np.where(ring.wraps, 1, ring.size - 1) * ring.stride
        latency = latency + np.where(ring.size > 1, hops * ring.dim.hop_s, 0.0)
    fans, hop_s = _fans(extents), zero
    tiers: list[tuple[_FanSweep, Floats]] = []
    for fan in fans:  # inner first: the longest way is one hop over the outermost tier
        seconds = np.where(fan.size > 1, 1 / np.minimum(fan.rate, fan.chip_rate), 0.0)
        tiers.append((fan, seconds))
        hop_s = np.where(fan.size > 1, fan.dim.hop_s, hop_s)
    return _Tiers(np.max(loads, axis=0), tiers, latency + hop_s + _launch(fans, zero))


@dataclass(frozen=True, slots=True)
class _Extent:
    """A group's extent along one physical dim in every mesh, 1 where it has none."""

    dim: PhysicalDim
    size: Floats
    stride: Floats
    shared: Floats  # extents of the group on this dim, which share its links

    @property
    def wraps(self) -> Bools:
        whole = self.size * self.stride == self.dim.size
        return whole & (isinstance(self.dim, TorusDim) and self.dim.wraps)


def _group(meshes: MeshSweep, axes: Sequence[str]) -> list[_Extent]:
    """The extents of a set of axes: parts of a dim that continue each other are one."""
    extents: list[_Extent] = []
    for dim in meshes.slice.dims:
        if dim.size > 1:
            parts = _joined(meshes, axes, dim)
            shared = np.maximum(1, sum((size > 1).astype(float) for size, _ in parts))
            extents += [_Extent(dim, size, stride, shared) for size, stride in parts]
    return [e for e in extents if (e.size > 1).any()]


def _joined(
    meshes: MeshSweep, axes: Sequence[str], dim: PhysicalDim
) -> list[tuple[Floats, Floats]]:
    """Sizes and strides along one dim, outer first, each part joined to the next where it can."""
    parts: list[tuple[Floats, Floats]] = []
    for chips, apart in meshes.extents(axes, dim.name):
        size, stride = chips.astype(float), apart.astype(float)
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


@dataclass(frozen=True, slots=True)
class TierRates:
    """Seconds per byte of a collective on every mesh by how far it goes, and its latency."""

    near: Floats  # on links of a torus, or inside a node
    far: Floats  # through a NIC, or between slices
    latency_s: Floats

    def seconds(self, nbytes: Floats) -> Floats:
        """Behind switches the slowest tier counts; between slices the torus and DCN take turns."""
        return nbytes * (self.near + self.far) + self.latency_s

    def at(self, which: Ints) -> "TierRates":
        """Those of some meshes."""
        return TierRates(self.near[which], self.far[which], self.latency_s[which])


def tier_rates(op: str, axes: Sequence[str], meshes: MeshSweep, *, copies: int = 1) -> TierRates:
    """What a collective costs; of an exchange, a unit gets one of the `copies` of a token.

    A permute is priced as an exchange of everything, as `choose` does; in a shift every chip of
    the group sends V bytes to the next, as `torus.shift_time` has it.
    """
    extents, one = _group(meshes, axes), np.ones(meshes.count)
    is_move = op == "permute"
    moved = "all_to_all" if is_move else op
    times = _shift_tiers(extents, one) if op == "shift" else _tiers(moved, one, extents)
    size = math.prod((meshes.ways(a) for a in axes), start=one) if is_move else one
    fans = [(f, s * size * _kept_copies(f, extents, copies)) for f, s in times.fans]
    return _near_and_far(times.torus * size, fans, times.latency_s, meshes)


def _near_and_far(
    torus: Floats, fans: Sequence[tuple["_FanSweep", Floats]], latency_s: Floats, meshes: MeshSweep
) -> TierRates:
    if meshes.slice.chip.torus:
        return TierRates(torus, sum((s for _, s in fans), np.zeros_like(torus)), latency_s)
    none = np.zeros_like(torus)
    near = sum((s for f, s in fans if f.dim.name not in FAR), none)
    far = np.max([none, *(s for f, s in fans if f.dim.name in FAR)], axis=0)
    is_far = (far > 0) & (far >= near)
    return TierRates(np.where(is_far, 0.0, near), np.where(is_far, far, 0.0), latency_s)


def _kept_copies(fan: "_FanSweep", extents: Sequence["_Extent"], copies: int) -> Floats:
    """The part of `copies` that go to different units of a tier, see `traffic.sent_once`."""
    if copies <= 1:
        return np.ones(1)
    wide, one = fan.dim.name not in FAR, np.ones(1)
    rings = math.prod((e.size for e in extents if isinstance(e.dim, TorusDim)), start=one)
    units = math.prod((e.size for e in extents if wide or e.dim.name in FAR), start=one)
    outside = np.where(units > 1, 1 - 1 / units, 1.0)
    distinct = (units - 1) * (1 - outside**copies) / (copies * outside)
    return np.where((units > 1) & (rings == 1), distinct, 1.0)


@dataclass(frozen=True, slots=True)
class _Tiers:
    """Seconds of a collective: on the torus, across each switched tier, and of flight."""

    torus: Floats
    fans: Sequence[tuple["_FanSweep", Floats]]
    latency_s: Floats


@dataclass(frozen=True, slots=True)
class _FanSweep:
    """A group's extent across one switched tier in every mesh; `Fan` has the scalar form."""

    dim: SwitchDim
    size: Floats
    members: Floats

    @property
    def rate(self) -> Floats:
        return self.dim.egress_bytes_per_s * self.members / self.dim.unit_chips

    @property
    def chip_rate(self) -> float:
        return self.dim.nic_bytes_per_s or self.dim.egress_bytes_per_s / self.dim.unit_chips

    @property
    def hops(self) -> Floats:
        near = np.minimum(self.size, self.dim.chain)
        return near - 1 + np.log2(self.size / near)


def _fans(extents: list[_Extent]) -> list[_FanSweep]:
    """The switched tiers of a group, inner first."""
    fans: list[_FanSweep] = []
    for extent in reversed(extents):
        dim = extent.dim
        if isinstance(dim, SwitchDim):
            below = [e.size for e in extents if _unit(e.dim) < dim.unit_chips]
            members = math.prod(below, start=np.ones_like(extent.size))
            fans.append(_FanSweep(dim, extent.size, members))
    return fans


def _unit(dim: PhysicalDim) -> int:
    return dim.unit_chips if isinstance(dim, SwitchDim) else 0


def _launch(fans: list[_FanSweep], zero: Floats) -> Floats:
    return np.max([zero, *(np.where(f.size > 1, f.dim.launch_s, 0.0) for f in fans)], axis=0)


def _tiers(op: str, nbytes: Floats, extents: list[_Extent]) -> _Tiers:
    rings = [e for e in extents if isinstance(e.dim, TorusDim)]
    fans, zero = _fans(extents), np.zeros_like(nbytes)
    twice = 2 if op == "all_reduce" else 1
    exchange = op == "all_to_all"
    inside = nbytes
    if exchange:
        inside = nbytes / math.prod((f.size for f in fans), start=np.ones_like(nbytes))
    torus = (_exchange if exchange else _gather)(inside, rings) if rings else zero
    tiers = [(f, twice * _tier(nbytes, fans, i, exchange=exchange)) for i, f in enumerate(fans)]
    latency = sum((_flight(r) for r in rings), zero)
    for fan in fans:
        latency = latency + (np.log2(fan.size) if exchange else fan.hops) * fan.dim.hop_s
    return _Tiers(twice * torus, tiers, twice * latency + _launch(fans, zero))


def _rate(ring: _Extent) -> Floats:
    assert isinstance(ring.dim, TorusDim)
    return (1 + ring.wraps) * ring.dim.link_bytes_per_s / ring.shared / ring.stride


def _flight(ring: _Extent) -> Floats:
    hops = np.where(ring.wraps, ring.size // 2, ring.size - 1)
    return hops * ring.stride * ring.dim.hop_s


def _gather(nbytes: Floats, rings: list[_Extent]) -> Floats:
    """The slowest of all sets of rings."""
    chips = math.prod(r.size for r in rings)
    worst, none = np.zeros_like(nbytes), np.zeros_like(nbytes)
    sets = [(none, none + 1)]  # what a set carries a second, and its chips
    for ring in rings:
        # an extent of one chip carries nothing and must lend no bandwidth
        own = np.where(ring.size > 1, _rate(ring), 0.0)
        more = [(rate + own, size * ring.size) for rate, size in sets]
        for rate, size in more:
            seconds = nbytes * (size - 1) / chips / np.where(rate > 0, rate, 1.0)
            worst = np.maximum(worst, seconds)
        sets += more
    return worst


def _exchange(nbytes: Floats, rings: list[_Extent]) -> Floats:
    chips = math.prod(r.size for r in rings)
    loads = [nbytes * (r.size**2 // 4) / (r.size * chips * _rate(r)) for r in rings]
    return np.max(loads, axis=0)


def _tier(nbytes: Floats, fans: list[_FanSweep], level: int, *, exchange: bool) -> Floats:
    fan, one = fans[level], np.ones_like(nbytes)
    behind = fan.size
    if fan.dim.nic_bytes_per_s is not None:
        outer = [f.size for f in fans[level:] if f.dim.nic_bytes_per_s is not None]
        behind = math.prod(outer, start=one)
    units = math.prod((f.size for f in fans[level:]), start=one) if exchange else one
    return np.where(fan.size > 1, nbytes / (units * fan.rate) * (1 - 1 / behind), 0.0)

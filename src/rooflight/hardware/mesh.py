"""`Mesh`: named mesh axes placed on the physical dims of a slice, and the groups they make.

A mesh axis is a list of `Segment`s, each a part of one physical dim. A *group* is the set of
chips that differ only in some mesh axes; it is what a collective runs over. `Group` holds what a
cost needs to know of it: rings and lines on the torus, fans on the switches.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from rooflight.errors import ParseError, PlacementError, UnknownNameError, UsageError
from rooflight.hardware.slice import PhysicalDim, Slice, SwitchDim, TorusDim, parse_slice

_AXIS = re.compile(r"\s*([A-Za-z]\w*)\s*=\s*(\d{1,9})\s*(?:@\s*([a-z0-9+]+))?\s*")
_PLACE = re.compile(r"([a-z]+)(\d{0,9})")

FAR = ("dcn", "leaf", "spine")  # switched tiers beyond the links of a torus or a node

Place = tuple[str, int | None]  # a physical dim, and how much of it; None is all that is left


@dataclass(frozen=True, slots=True)
class Segment:
    """`size` positions of physical dim `dim`, `stride` chips apart."""

    dim: str
    size: int
    stride: int


@dataclass(frozen=True, slots=True)
class Ring:
    """A group's extent along one torus axis: a ring if `wraps`, else a line.

    Neighbours in the group are `stride` links apart, and `stride` sibling groups share each link.
    """

    dim: str
    size: int
    stride: int
    wraps: bool
    link_bytes_per_s: float
    hop_s: float

    @property
    def bytes_per_s(self) -> float:
        """What one chip can send along this axis: both directions of a ring, one of a line."""
        directions = 2 if self.wraps else 1
        return directions * self.link_bytes_per_s / self.stride

    @property
    def hops(self) -> int:
        """Group hops to the farthest member: floor(n/2) around a ring, n-1 along a line."""
        return self.size // 2 if self.wraps else self.size - 1


@dataclass(frozen=True, slots=True)
class Fan:
    """A group's extent across one switched tier: `size` units, `members` of the group in each."""

    dim: str
    size: int
    members: int
    unit_chips: int
    egress_bytes_per_s: float
    hop_s: float
    reduces: bool
    nic_bytes_per_s: float | None = None
    chain: int = 1
    launch_s: float = 0.0

    @property
    def bytes_per_s(self) -> float:
        """The part of a unit's egress that this group gets; its sibling groups use the rest."""
        return self.egress_bytes_per_s * self.members / self.unit_chips

    @property
    def chip_bytes_per_s(self) -> float:
        """What one chip alone can send out of its unit: its NIC, else its part of the egress."""
        return self.nic_bytes_per_s or self.egress_bytes_per_s / self.unit_chips

    @property
    def hops(self) -> float:
        """Hops from one end to the other: chips of a host one by one, then log2 of the hosts."""
        near = min(self.size, self.chain)
        return near - 1 + math.log2(self.size / near)


@dataclass(frozen=True, slots=True)
class Group:
    """The chips one collective runs over: torus rings first, then fans from inner to outer."""

    rings: tuple[Ring, ...]
    fans: tuple[Fan, ...]

    @property
    def size(self) -> int:
        return math.prod(r.size for r in self.rings) * math.prod(f.size for f in self.fans)


@dataclass(frozen=True, slots=True)
class Mesh:
    """Named axes on a slice, outermost first.

    >>> mesh = parse_mesh("X=4,Y=4", on="v5e:4x4")
    >>> mesh.group("X").rings[0].wraps, str(mesh)
    (False, 'X=4@x,Y=4@y')
    """

    slice: Slice
    segments: Mapping[str, tuple[Segment, ...]]

    def __str__(self) -> str:
        """Text that `parse_mesh` reads back; a part of a dim has its size: `X=8@x+y2`."""
        whole = {d.name: d.size for d in self.slice.dims}

        def place(part: Segment) -> str:
            return part.dim if part.size == whole[part.dim] else f"{part.dim}{part.size}"

        return ",".join(
            f"{name}={self.size(name)}" + ("@" + "+".join(map(place, parts)) if parts else "")
            for name, parts in self.segments.items()
        )

    @property
    def axes(self) -> dict[str, int]:
        """Size of every axis, in order."""
        return {name: self.size(name) for name in self.segments}

    def size(self, axis: str) -> int:
        return math.prod(s.size for s in self._parts(axis))

    def group(self, axes: Sequence[str]) -> Group:
        """The group of a set of axes (a string of one-letter names or a list)."""
        dims = {d.name: d for d in self.slice.dims}
        switched = {d.name for d in self.slice.dims if isinstance(d, SwitchDim)}
        merged = _merge([s for axis in axes for s in self._parts(axis)], switched)
        shared = {name: sum(s.dim == name for s in merged) for name in dims}
        rings: list[Ring] = []
        fans: list[Fan] = []
        for segment in merged:
            dim = dims[segment.dim]
            if isinstance(dim, TorusDim):
                rings.append(_ring(segment, dim, shared[segment.dim]))
            else:
                fans.append(_fan(segment, dim, _members_inside(merged, dims, dim)))
        fans.sort(key=lambda f: f.unit_chips)
        return Group(tuple(rings), tuple(fans))

    def _parts(self, axis: str) -> tuple[Segment, ...]:
        if axis not in self.segments:
            raise UnknownNameError("mesh axis", axis, self.segments)
        return self.segments[axis]


def _merge(segments: list[Segment], switched: set[str]) -> list[Segment]:
    """Joins segments of one dim that are each other's continuation, so X and Y on x become x.

    Behind a switch every chip is as near as any other, so there all segments of a dim are one.
    """
    merged: list[Segment] = []
    for segment in sorted(segments, key=lambda s: (s.dim, -s.stride)):
        last = merged[-1] if merged else None
        follows = last and last.stride == segment.stride * segment.size
        if last and last.dim == segment.dim and (follows or segment.dim in switched):
            merged[-1] = Segment(segment.dim, last.size * segment.size, segment.stride)
        else:
            merged.append(segment)
    return merged


def _ring(segment: Segment, dim: TorusDim, shared: int) -> Ring:
    """A part of an axis wraps only if it reaches all the way round."""
    wraps = dim.wraps and segment.size * segment.stride == dim.size
    rate = dim.link_bytes_per_s / shared
    return Ring(dim.name, segment.size, segment.stride, wraps, rate, dim.hop_s)


def _fan(segment: Segment, dim: SwitchDim, members: int) -> Fan:
    return Fan(
        dim.name,
        segment.size,
        members,
        dim.unit_chips,
        dim.egress_bytes_per_s,
        dim.hop_s,
        dim.reduces,
        dim.nic_bytes_per_s,
        dim.chain,
        dim.launch_s,
    )


def _members_inside(merged: list[Segment], dims: Mapping[str, PhysicalDim], tier: SwitchDim) -> int:
    """Group members inside one unit of a tier: the extents along every dim below it."""
    names = list(dims)
    below = set(names[names.index(tier.name) + 1 :])
    return math.prod(s.size for s in merged if s.dim in below)


def parse_mesh(text: str, *, on: str | Slice) -> Mesh:
    """Reads `X=4,Y=16` and places it; `X=16@x+y` names the physical dims of an axis.

    >>> str(parse_mesh("X=16,Y=4", on="v5p:4x4x4"))
    'X=16@x+y,Y=4@z'
    """
    target = parse_slice(on) if isinstance(on, str) else on
    sizes: dict[str, int] = {}
    wanted: dict[str, tuple[Place, ...]] = {}
    for part in text.split(","):
        match = _AXIS.fullmatch(part)
        if match is None or int(match[2]) < 1:
            raise ParseError(f"{part!r} is not AXIS=SIZE", hint="write X=4,Y=4 or X=16@x+y,Y=4@z")
        if match[1] in sizes:
            raise ParseError(f"mesh axis {match[1]} is named twice", hint="give each axis one size")
        sizes[match[1]] = int(match[2])
        if match[3]:
            wanted[match[1]] = tuple(_parse_place(p) for p in match[3].split("+"))
    return place(sizes, target, wanted=wanted)


def _parse_place(text: str) -> Place:
    match = _PLACE.fullmatch(text)
    if match is None or match[2] == "0":
        raise ParseError(f"{text!r} is not a place on a slice", hint="write X=16@x+y or X=8@x+y2")
    return match[1], int(match[2]) if match[2] else None


def place(
    sizes: Mapping[str, int], on: Slice, *, wanted: Mapping[str, tuple[Place, ...]] | None = None
) -> Mesh:
    """Places mesh axes on physical dims: as wanted, else on whole dims, else split in order."""
    chips = math.prod(sizes.values())
    if chips != on.num_chips:
        raise PlacementError(
            f"mesh {_text(sizes)} has {chips} chips, {on} has {on.num_chips}",
            hint=_fill_hint(sizes, on),
        )
    if wanted:
        return Mesh(on, _place_wanted(sizes, on, wanted))
    dims = [d for d in on.dims if d.size > 1]
    whole = _place_whole(list(sizes.items()), dims)
    return Mesh(on, whole if whole is not None else _place_split(sizes, dims, on))


def _text(sizes: Mapping[str, int]) -> str:
    return ",".join(f"{k}={v}" for k, v in sizes.items())


def _fill_hint(sizes: Mapping[str, int], on: Slice) -> str:
    rest, remainder = divmod(on.num_chips, math.prod(sizes.values()))
    spare = next((n for n in "ZYXWV" if n not in sizes), None)
    if remainder == 0 and rest > 1 and spare:
        return f"add an axis for the other chips: {_text(sizes)},{spare}={rest}"
    whole = ",".join(f"{n}={d.size}" for n, d in zip("XYZW", on.dims, strict=False))
    return f"for instance {whole}"


def _place_whole(
    axes: list[tuple[str, int]], dims: list[PhysicalDim]
) -> dict[str, tuple[Segment, ...]] | None:
    """Every axis on whole dims, trying dims in order; None if no such placement exists."""
    if not axes:
        return {} if not dims else None
    name, size = axes[0]
    for count in range(len(dims) + 1):
        for chosen in combinations(dims, count):
            if math.prod(d.size for d in chosen) != size:
                continue
            rest = _place_whole(axes[1:], [d for d in dims if d not in chosen])
            if rest is not None:
                return {name: tuple(Segment(d.name, d.size, 1) for d in chosen)} | rest
    return None


def _place_split(
    sizes: Mapping[str, int], dims: Sequence[PhysicalDim], on: Slice
) -> dict[str, tuple[Segment, ...]]:
    """Row-major over the dims in order; an axis may take the outer part of a dim."""
    left = {d.name: d.size for d in dims}
    order = [(d.name, None) for d in dims]
    return {axis: _take(axis, size, order, left, on) for axis, size in sizes.items()}


def _place_wanted(
    sizes: Mapping[str, int], on: Slice, wanted: Mapping[str, tuple[Place, ...]]
) -> dict[str, tuple[Segment, ...]]:
    """Axes that name their dims first, in order; the others share what is left."""
    left = {d.name: d.size for d in on.dims}
    for places in wanted.values():
        for name, _ in places:
            if name not in left:
                raise UnknownNameError(f"physical dim of {on}", name, left)
    placed = {a: _take(a, sizes[a], places, left, on) for a, places in wanted.items()}
    order = [(d.name, None) for d in on.dims]
    for axis, size in sizes.items():
        if axis not in placed:
            placed[axis] = _take(axis, size, order, left, on)
    return {axis: placed[axis] for axis in sizes}


def _take(
    axis: str, size: int, order: Sequence[Place], left: dict[str, int], on: Slice
) -> tuple[Segment, ...]:
    """Takes `size` chips from the outer end of the dims in `order`, updating what is left."""
    parts: list[Segment] = []
    need = size
    for name, asked in order:
        part = math.gcd(need, left[name])
        if asked is not None:
            part = asked if part % asked == 0 else 0
        if part > 1:
            left[name] //= part
            need //= part
            parts.append(Segment(name, part, left[name]))
    if need != 1:
        raise PlacementError(
            f"mesh axis {axis}={size} does not divide the dims of {on}"
            f" ({', '.join(f'{d.name}={d.size}' for d in on.dims)})",
            hint="choose axis sizes that are products of divisors of the slice's own sizes",
        )
    return tuple(parts)


def mesh_of(text: str | None, on: Slice) -> Mesh:
    """The mesh of `--mesh`; without it, one axis (X, Y, Z, W) for each physical dim."""
    sizes = [dim.size for dim in on.dims if dim.size > 1] or [1]
    default = ",".join(f"{name}={size}" for name, size in zip("XYZW", sizes, strict=False))
    return parse_mesh(default if text is None else text, on=on)


def axes_of(text: str | None, mesh: Mesh) -> list[str]:
    """The axes of `--axes` (`X`, `X,Y`, or `XY` for one-letter names); without it, all."""
    if text is None:
        return list(mesh.axes)
    axes = [text] if text in mesh.axes else text.split(",") if "," in text else list(text)
    for axis in axes:
        mesh.size(axis)  # an unknown axis gets its did-you-mean here
    if not axes or len(set(axes)) < len(axes):
        raise UsageError(
            f"axes {text!r} must name each axis once", hint=f"write {','.join(mesh.axes)}"
        )
    return axes

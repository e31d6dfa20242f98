"""Many meshes of one slice as arrays: every way to share out its chips among named axes.

In: axis names and a slice. Out: a `MeshSweep` of M meshes. On a torus every factoring of every
dim; behind switches those that follow an order of ranks.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from rooflight.hardware.mesh import Mesh, Segment
from rooflight.hardware.slice import PhysicalDim, Slice, TorusDim

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class MeshSweep:
    """M meshes with the same axis names on one slice: sizes[axis][dim] is an array of M.

    Axes are nested as they are named, outermost first, or as `nesting` has it: for every level an
    array of M, each the place of an axis among the names.
    """

    slice: Slice
    sizes: Mapping[str, Mapping[str, Ints]]
    nesting: Ints | None = None

    @property
    def count(self) -> int:
        return len(next(iter(next(iter(self.sizes.values())).values())))

    def ways(self, axis: str) -> Ints:
        """Size of an axis in every mesh."""
        return math.prod(self.sizes[axis].values(), start=np.ones(self.count, np.int64))

    def nested(self, order: Sequence[str]) -> "MeshSweep":
        """The same meshes with their axes nested in this order."""
        places = [[list(self.sizes).index(axis)] for axis in order]
        return replace(self, nesting=np.repeat(np.array(places, np.int64), self.count, axis=1))

    def extents(self, axes: Sequence[str], dim: str) -> list[tuple[Ints, Ints]]:
        """Of each of the axes along a dim, outermost first: its size, and its stride.

        The stride is the chips between neighbours: what the axes nested inside take of the dim.
        """
        held = np.stack([parts[dim] for parts in self.sizes.values()])
        chosen = np.array([axis in axes for axis in self.sizes])
        if self.nesting is not None:
            held = np.take_along_axis(held, self.nesting, axis=0)
            chosen = chosen[self.nesting]
        stride = np.cumprod(held[::-1], axis=0)[::-1] // held
        if self.nesting is None:
            return list(zip(held[chosen], stride[chosen], strict=True))
        number = np.cumsum(chosen, axis=0) * chosen  # 1 is the outermost of the group
        mine = [number == n for n in range(1, sum(axis in axes for axis in self.sizes) + 1)]
        return [((held * one).sum(axis=0), (stride * one).sum(axis=0)) for one in mine]

    def only(self, chosen: Bools) -> "MeshSweep":
        """The meshes at which `chosen` is true."""
        return self.at(np.flatnonzero(chosen))

    @staticmethod
    def joined(tables: Sequence["MeshSweep"]) -> "MeshSweep":
        """The meshes of several sweeps that have the same axes."""
        first = tables[0]
        nesting = [t.nesting for t in tables if t.nesting is not None]
        return MeshSweep(
            first.slice,
            {
                axis: {d: np.concatenate([t.sizes[axis][d] for t in tables]) for d in parts}
                for axis, parts in first.sizes.items()
            },
            np.concatenate(nesting, axis=1) if nesting else None,
        )

    def at(self, rows: Ints) -> "MeshSweep":
        """Some of the meshes, by number."""
        sizes = {a: {d: n[rows] for d, n in p.items()} for a, p in self.sizes.items()}
        nesting = None if self.nesting is None else self.nesting[:, rows]
        return MeshSweep(self.slice, sizes, nesting)

    def swaps(self) -> tuple[Bools, Ints]:
        """Whether each mesh is the first of those that are alike, and how many these are.

        Two dims of a torus that are alike may swap what they give to the axes: no price changes.

        >>> from rooflight.hardware.slice import parse_slice
        >>> first, times = every_mesh(("X", "Y"), parse_slice("v5p:4x4x4")).swaps()
        >>> int(first.sum()), times[first].tolist()
        (10, [1, 3, 3, 3, 6, 3, 1, 3, 3, 1])
        """
        first, times = np.ones(self.count, np.bool_), np.ones(self.count, np.int64)
        before: dict[PhysicalDim, list[Ints]] = {}
        for dim in (d for d in self.slice.dims if isinstance(d, TorusDim) and d.size > 1):
            code = np.zeros(self.count, np.int64)
            for parts in self.sizes.values():
                code = code * (dim.size + 1) + parts[dim.name]
            seen = before.setdefault(replace(dim, name=""), [])
            same = sum((code == other).astype(np.int64) for other in seen)
            first &= code >= seen[-1] if seen else True
            seen.append(code)
            times = times * len(seen) // (1 + same)
        return first, times

    def mesh(self, index: int) -> Mesh:
        """One of the meshes as a record."""
        one, order = self.at(np.array([index])), list(self.sizes)
        if self.nesting is not None:
            order = [order[int(place)] for place in self.nesting[:, index]]
        segments = {
            axis: tuple(
                Segment(dim, int(size[0]), int(stride[0]))
                for dim in one.sizes[axis]
                for size, stride in one.extents((axis,), dim)
                if size[0] > 1
            )
            for axis in order
        }
        return Mesh(self.slice, segments)


def every_mesh(axes: Sequence[str], on: Slice) -> MeshSweep:
    """Every way to share out each physical dim among the axes, outer axes first.

    >>> from rooflight.hardware.slice import parse_slice
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


def every_degree(axes: Sequence[str], chips: int) -> Ints:
    """Every way to share out a number of chips among the axes: a row of degrees each."""
    return np.array(list(_factorings(chips, len(axes))), np.int64)


def ranked_meshes(order: Sequence[str], on: Slice, degrees: Ints, axes: Sequence[str]) -> MeshSweep:
    """The meshes whose axes, outermost first in `order`, follow the ranks: node by node.

    `degrees` has a column for each of `axes`. The innermost axis fills a node first and goes on to
    the next tier only when that is full; where degrees do not allow it there is no mesh. Beyond the
    node an axis takes what fits of a tier, and the rest further out.

    >>> from rooflight.hardware.slice import parse_slice
    >>> names = ("Z", "Y")
    >>> found = ranked_meshes(names, parse_slice("h100:8x4"), every_degree(names, 32), names)
    >>> [str(found.mesh(i)) for i in (1, 2)]
    ['Z=2@leaf2,Y=16@leaf2+node', 'Z=4@leaf,Y=8@node']
    """
    dims = [d for d in on.dims if d.size > 1] or on.dims[:1]
    left = {d.name: np.full(len(degrees), d.size, np.int64) for d in dims}
    whole = np.ones(len(degrees), np.bool_)
    sizes: dict[str, dict[str, Ints]] = {}
    for axis in reversed(order):
        need = degrees[:, list(axes).index(axis)]
        taken: dict[str, Ints] = {}
        for dim in reversed(dims):
            part = np.gcd(need, left[dim.name])
            left[dim.name] = left[dim.name] // part
            need = need // part
            if dim.name == "node":  # further out, any nodes may stand next to each other
                whole &= (need == 1) | (left[dim.name] == 1)
            taken[dim.name] = part
        sizes[axis] = {d.name: taken[d.name] for d in dims}
    return MeshSweep(on, {axis: sizes[axis] for axis in axes}).only(whole)


def _factorings(size: int, parts: int) -> Iterator[tuple[int, ...]]:
    """Every ordered product of `parts` whole numbers that is `size`."""
    if parts == 1:
        yield (size,)
        return
    for first in range(1, size + 1):
        if size % first == 0:
            for rest in _factorings(size // first, parts - 1):
                yield (first, *rest)

"""Many meshes of one slice as arrays: every way to share out its chips among named axes.

In: axis names and a slice. Out: a `MeshSweep` of M meshes. On a torus every factoring of every
dim; behind switches those that follow an order of ranks.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rooflight.hardware.mesh import Mesh, Segment
from rooflight.hardware.slice import Slice

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

    @staticmethod
    def joined(tables: Sequence["MeshSweep"]) -> "MeshSweep":
        """The meshes of several sweeps that have the same axes."""
        first = tables[0]
        return MeshSweep(
            first.slice,
            {
                axis: {d: np.concatenate([t.sizes[axis][d] for t in tables]) for d in parts}
                for axis, parts in first.sizes.items()
            },
        )

    def at(self, rows: Ints) -> "MeshSweep":
        """Some of the meshes, by number."""
        parts = self.sizes.items()
        return MeshSweep(self.slice, {a: {d: n[rows] for d, n in p.items()} for a, p in parts})

    def codes(self, axes: Sequence[str]) -> Ints:
        """One number for what each mesh gives of every dim to every axis, in this order."""
        code, radix = np.zeros(self.count, np.int64), 1
        for axis in axes[1:]:  # the first has what the others leave
            for dim in self.slice.dims:
                if dim.name in self.sizes[axis]:
                    code, radix = code + radix * self.sizes[axis][dim.name], radix * (dim.size + 1)
        return code

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

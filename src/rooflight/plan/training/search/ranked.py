"""Layouts of a search in order, as arrays: which comes first, and what each is.

In: points with their prices. Out: `Ranked`, and all of them by key.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rooflight.algebra.shapes import ways
from rooflight.costs.mesh_sweep import Bools, Floats, Ints
from rooflight.hardware.mesh import Mesh
from rooflight.models.layout.rules import Layout
from rooflight.plan.training.forecast.evidence import reach_of
from rooflight.plan.training.memory.job import Microbatching
from rooflight.plan.training.memory.remat import Remat
from rooflight.plan.training.time.sweep import Points

_BAND = math.log(1.001)  # times in one band are tied


@dataclass(frozen=True, slots=True)
class Ranked:
    """Layouts of one chunk that may fit, as arrays: their key, their point and their option."""

    points: Points
    options: Sequence[tuple[Microbatching, Remat]]  # microbatch counts left out
    keys: Floats
    expected_s: Floats
    counted_s: Floats  # more than that where no measured run is like it
    at: Ints
    option: Ints
    sized: Ints  # those of one number hold the same memory: they differ in placement alone

    def drop(self, index: int) -> None:
        """Leaves out whatever holds as much memory as one that does not fit."""
        self.keys[self.sized == self.sized[index]] = np.inf

    def degrees(self, index: int) -> tuple[str, tuple[tuple[str, int], ...]]:
        """`Candidate.degrees`, without making the mesh."""
        at = self.at[index]
        sizes = ((axis, int(ways[at])) for axis, ways in self.points.ways.items())
        return self.points.layout.text.replace("tp=", "sp="), tuple(sorted(sizes))

    def complexity(self, index: int) -> tuple[bool, int, int, int]:
        """Tensors beyond a node or torus, chips for a sequence, stages, axes: less is simpler.

        People run as little model parallelism as they can: chips that share a sequence wait for
        each other in every layer, replicas once per step.
        """
        layout, mesh, *_ = self.named(index)
        is_far = bool({"tp@far", "tp@dcn"} & reach_of(layout, mesh))
        replicas, stages = (
            ways(axes, mesh.axes) for axes in (layout.stream.get("B", ()), layout.stages)
        )
        return is_far, math.prod(mesh.axes.values()) // replicas, stages, len(mesh.axes)

    def option_at(self, index: int) -> tuple[int, Microbatching, str]:
        """What sets layouts of the same degrees apart, beside their placement."""
        micro, remat = self.options[int(self.option[index])]
        return int(self.points.count[self.at[index]]), micro, remat.name

    def named(self, index: int) -> tuple[Layout, Mesh, Microbatching, Remat]:
        points = self.points
        mesh = points.meshes.mesh(int(points.mesh_of[self.at[index]]))
        micro, remat = self.options[int(self.option[index])]
        return (points.layout, mesh, replace(micro, count=int(points.count[self.at[index]])), remat)


class Placements:
    """Points that differ in placement alone, with evidence or without: which of them come first.

    No other is ever looked at, and the arrays of all of them would fill a machine's memory.
    """

    def __init__(self, sizes: Ints, is_new: Bools) -> None:
        group = 2 * sizes + is_new
        self._order = np.argsort(group, kind="stable")
        self._group = group[self._order]
        self._starts = np.flatnonzero(np.diff(self._group, prepend=-1))
        self._lengths = np.diff(self._starts, append=len(group))

    def least(self, *columns: Floats) -> Ints:
        """The points that are the first of their group by some column."""
        found: list[Ints] = []
        for column in columns:
            values = column[self._order]
            least = np.repeat(np.minimum.reduceat(values, self._starts), self._lengths)
            at = np.flatnonzero(values == least)
            found.append(self._order[at[np.diff(self._group[at], prepend=-1) != 0]])
        return np.unique(np.concatenate(found))


def rank(expected_s: Floats, collectives_s: Floats) -> Floats:
    """The order of layouts: bands of a thousandth, in a band by the time of all collectives."""
    band = np.floor(np.log(expected_s) / _BAND)
    return band + np.round(collectives_s / (collectives_s + expected_s) / 2, 9)


def in_order(ranked: Sequence[Ranked]) -> Iterator[tuple[int, int]]:
    """All layouts by key, ties as they come, each as its chunk and its place there.

    Only as many are sorted as are looked at; what is dropped meanwhile does not come.
    """
    keys = np.concatenate([r.keys for r in ranked]) if ranked else np.zeros(0)
    ends = np.cumsum([len(r.keys) for r in ranked])
    seen = -np.inf
    size = 256
    while True:
        later = np.flatnonzero((keys > seen) & (keys < np.inf))
        if not len(later):
            return
        limit = np.partition(keys[later], min(size, len(later)) - 1)[min(size, len(later)) - 1]
        batch = later[keys[later] <= limit]
        for at in np.argsort(keys[batch], kind="stable"):
            index = int(batch[at])
            chunk = int(np.searchsorted(ends, index, side="right"))
            place = index - int(ends[chunk]) + len(ranked[chunk].keys)
            if ranked[chunk].keys[place] < np.inf:
                yield chunk, place
        seen, size = limit, size * 4

"""Every size of a template that divides, and all placements that have it.

In: a question and the placements of a template. Out: `Divided`. A size is the ways of every axis
with a number of microbatches: what fits and what is too slow in any case depends on it alone.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from rooflight.costs.mesh_sweep import Bools, Ints
from rooflight.plan.training.search.cache import Placed
from rooflight.plan.training.search.candidate import Question
from rooflight.plan.training.search.space import data_axes, first_alike, microbatch_counts
from rooflight.plan.training.time.sweep import Points, Workload

_CHUNK = 50_000  # points priced together: their arrays stay small


@dataclass(frozen=True, slots=True)
class Divided:
    """Sizes that divide, one point of each, and how many layouts each of them stands for."""

    few: Points
    times: Ints
    number: Ints  # among the few, by ways and by microbatches; -1 does not divide
    ways_of: Ints  # which ways each mesh has

    def points(self, left: Bools) -> Iterator[tuple[Points, Ints]]:
        """All placements of the sizes that are left, a chunk at a time, and which size each has."""
        few = self.few
        mesh_of, count_of = np.nonzero(np.append(left, False)[self.number][self.ways_of])
        for start in range(0, len(mesh_of), _CHUNK):
            mesh, count = (of[start : start + _CHUNK] for of in (mesh_of, count_of))
            points = Points(few.sizes, few.meshes, mesh, few.distinct_counts, count)
            yield points, self.number[self.ways_of[mesh], count]


def divided(question: Question, sizes: Workload, placed: Placed) -> Divided | None:
    """The sizes that leave each data shard whole sequences; None where there are none."""
    meshes, region = placed.meshes, question.region
    if meshes.count and region.is_placed:
        meshes = meshes.only(region.on(meshes))
    counts = np.array(region.counts(microbatch_counts(question.batch)), np.int64)
    if not meshes.count or not len(counts):
        return None
    first, ways_of = first_alike([meshes.ways(axis) for axis in meshes.sweep.sizes])
    whole = Points(sizes, meshes, first, np.ones(1, np.int64), np.zeros_like(first))
    data = whole.split(data_axes(meshes.layout))[:, None]
    divides = whole.divides(placed.splits)[:, None] & (question.batch // counts % data == 0)
    at, count_of = np.nonzero(divides)
    number = np.full(divides.shape, -1)
    number[at, count_of] = np.arange(len(at))
    few = Points(sizes, meshes, first[at], counts, count_of)
    times = np.bincount(ways_of, meshes.times())[at].astype(np.int64)
    return Divided(few, times, number, ways_of) if len(at) else None


def every_point(question: Question, sizes: Workload, placed: Placed) -> Iterator[Points]:
    """All points of a template that divide, a chunk at a time."""
    found = divided(question, sizes, placed)
    if found:
        yield from (points for points, _ in found.points(np.ones(len(found.few), np.bool_)))

"""What a search works out that no batch changes, kept for the next question about the same slice.

In: a graph, a slice, the tokens of a sequence. Out: the contractions and the placements of every
template. A search with what was kept finds what one without it finds: a test asks both.

Every size of a template that divides, and all placements that have it. A size is the ways of every
axis with a number of microbatches: what fits and what is too slow in any case depends on it alone.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from rooflight.algebra.notation import Contraction, Tensor
from rooflight.costs.mesh_sweep import Bools, Ints, MeshSweep
from rooflight.dtypes import DTYPES
from rooflight.hardware.slice import Slice
from rooflight.models.graph.ops import Graph
from rooflight.models.layout.rules import Layout
from rooflight.plan.training.derive.derivation import Split, splits_of
from rooflight.plan.training.memory.framework import FRAMEWORKS, Framework
from rooflight.plan.training.memory.template import Same
from rooflight.plan.training.search.candidate import Question
from rooflight.plan.training.search.space import (
    Meshes,
    data_axes,
    every_placement,
    first_alike,
    microbatch_counts,
    templates,
)
from rooflight.plan.training.time.sweep import Points, Workload, contractions

_CHUNK = 50_000  # points priced together: their arrays stay small

Asked = Mapping[int, Sequence[Contraction]]
OURS = FRAMEWORKS["rooflight"]
_MOST_ROWS = 500_000  # placements that are kept, of all templates: about 60 MB


@dataclass(frozen=True, slots=True)
class PlacedTemplate:
    """A template on a slice: what divides whatever the batch, and what the batch must divide."""

    meshes: Meshes
    splits: frozenset[Split]  # of dims that depend on the batch


class SearchCache:
    """One model on one slice, at one length of sequences."""

    def __init__(self, graph: Graph, on: Slice, seq: int, framework: Framework = OURS) -> None:
        self._graph, self._on, self._seq = graph, on, seq
        self._asked: dict[str, tuple[Layout, Asked]] = {}
        self._placed: dict[tuple[str, bool], PlacedTemplate] = {}
        self._rows = 0
        self.templates: tuple[Layout, ...] = tuple(templates(graph, framework))

    def asked(self, layout: Layout) -> Asked:
        """Every contraction of a template."""
        known = self._asked.get(layout.text)
        if known is None or known[0] != layout:  # one text may have other rules, as in serving
            known = layout, contractions(self._graph, layout)
            self._asked[layout.text] = known
        return known[1]

    def placed(self, layout: Layout, *, alike: bool = False) -> PlacedTemplate:
        """The placements on which the model divides for some batch; of like ones the first."""
        key = layout.text, alike
        found = self._placed.get(key)
        if found is None or found.meshes.layout != layout:
            found = self._place(layout, alike=alike)
            if self._rows + found.meshes.count <= _MOST_ROWS:
                self._rows += found.meshes.count
                self._placed[key] = found
        return found

    def _place(self, layout: Layout, *, alike: bool) -> PlacedTemplate:
        graph = self._graph
        splits = splits_of(placed_tensors(graph, layout, self.asked(layout)))
        moving = frozenset(s for s in splits if s[0] == "B" or s[0] in graph.per_token)
        sizes = Workload(graph, 1, self._seq, DTYPES["bf16"], {})

        def keep(table: MeshSweep) -> npt.NDArray[np.bool_]:
            alone, every = Meshes(layout, table), np.arange(table.count)
            points = Points(sizes, alone, every, np.ones(1, np.int64), np.zeros_like(every))
            whole = points.divides(splits - moving) & (points.num_stages <= len(graph.order))
            return whole if alike else whole & table.swaps()[0]

        return PlacedTemplate(every_placement(layout, self._on, keep), moving)


def placed_tensors(graph: Graph, layout: Layout, asked: Asked) -> Iterator[Tensor]:
    """All that a layout has to divide: the stream, weights, and every tensor that is asked."""
    yield layout.of_activation(Tensor("x", ("B", "T", "D"), ((), (), ())))
    yield from (layout.of_weight(p.tensor) for p in graph.params)
    for block in asked.values():
        for matmul in block:
            yield from (*matmul.operands, matmul.result)


def search_cache_of(graph: Graph, on: Slice, seq: int, framework: Framework = OURS) -> SearchCache:
    """What is kept of the last few slices."""
    return _kept(Same(graph), on, seq, framework)


@lru_cache(maxsize=4)
def _kept(same: Same, on: Slice, seq: int, framework: Framework) -> SearchCache:
    return SearchCache(same.graph, on, seq, framework)


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


def divided(question: Question, sizes: Workload, placed: PlacedTemplate) -> Divided | None:
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


def every_point(question: Question, sizes: Workload, placed: PlacedTemplate) -> Iterator[Points]:
    """All points of a template that divide, a chunk at a time."""
    found = divided(question, sizes, placed)
    if found:
        yield from (points for points, _ in found.points(np.ones(len(found.few), np.bool_)))

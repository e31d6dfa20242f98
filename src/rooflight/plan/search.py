"""Which layout? Every layout of the space is judged; the fastest that fit are reported.

In: a `Question`. Out: a `Search`: `Candidate`s, best first, and counts. A layout here is a pattern
of schemes on a mesh (`space`), a number of microbatches, a pipeline schedule and a remat policy.
Those whose weights and kept activations alone exceed the memory are only counted (`least_memory`).
All others are priced at once (`sweep`), with the same formulas as one by one (`price_one`): a test
tries everything, one by one, and finds the same winner with the same time.

Of times within a thousandth, the layout with less time in collectives is first: what overlaps
today may not tomorrow.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from rooflight.costs.choose import TIE
from rooflight.errors import ModelError
from rooflight.graph import training_flops
from rooflight.graph.layout import Layout
from rooflight.plan.bubble import BUBBLES
from rooflight.plan.candidate import Candidate, Question, held_by, price_one
from rooflight.plan.compose import Steps
from rooflight.plan.groundwork import Asked, Groundwork, Placed, groundwork_of
from rooflight.plan.job import Microbatching
from rooflight.plan.least_memory import LeastMemory
from rooflight.plan.memory import usable_hbm_bytes
from rooflight.plan.region import Region, or_all
from rooflight.plan.remat import REMATS, Remat
from rooflight.plan.space import Meshes, microbatch_counts
from rooflight.plan.sweep import (
    Points,
    Sizes,
    kept_by,
    layer_times,
)
from rooflight.specs.mesh import Mesh

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

SCHEDULES: tuple[tuple[str, int], ...] = (
    ("1f1b", 1),
    ("interleaved", 2),
    ("interleaved", 4),
)
POLICIES: tuple[Remat, ...] = (REMATS["none"], REMATS["dots"], REMATS["block"])
_CHUNK = 50_000  # points priced together: their arrays stay small
_BAND = math.log(1.001)  # times in one band are tied
_SAFE = 1.003  # what is slower than the last to be reported by this is in a later band


@dataclass(frozen=True, slots=True)
class Search:
    """The best candidates, and how many layouts divide and were priced, and could not fit."""

    candidates: tuple[Candidate, ...]
    num_priced: int  # those that are too large among them
    num_too_large: int  # weights, optimizer and kept activations exceed the HBM
    num_too_slow: int  # meshes with microbatches left out: FLOPs and bubble alone take too long
    num_unfit: int  # of those looked at more closely


@dataclass(frozen=True, slots=True)
class _Ranked:
    """Layouts of one chunk that may fit, as arrays: their key, their point and their option."""

    points: Points
    options: Sequence[tuple[Microbatching, Remat]]  # microbatch counts left out
    keys: Floats
    expected_s: Floats
    at: Ints
    option: Ints

    def degrees(self, index: int) -> tuple[str, tuple[tuple[str, int], ...]]:
        """`Candidate.degrees`, without making the mesh."""
        at = self.at[index]
        sizes = ((axis, int(ways[at])) for axis, ways in self.points.ways.items())
        return self.points.layout.text, tuple(sorted(sizes))

    def option_at(self, index: int) -> tuple[int, Microbatching, str]:
        """What sets layouts of the same degrees apart, beside their placement."""
        micro, remat = self.options[int(self.option[index])]
        return self.points.count_at(int(self.at[index])), micro, remat.name

    def named(self, index: int) -> tuple[Layout, Mesh, Microbatching, Remat]:
        points = self.points
        mesh = points.meshes.mesh(int(points.mesh_of[self.at[index]]))
        micro, remat = self.options[int(self.option[index])]
        return (
            points.layout,
            mesh,
            replace(micro, count=points.count_at(int(self.at[index]))),
            remat,
        )


Watch = Callable[[int, int, int], None]  # patterns done, patterns in all, layouts priced


def search_training(question: Question, *, count: int = 8, watch: Watch | None = None) -> Search:
    """Prices every layout and returns the `count` fastest that fit, no two of the same degrees."""
    found = Found(question, count)
    layouts = layouts_of(question)
    limit_s = math.inf
    for done, layout in enumerate(layouts):
        if layout.stages and limit_s == math.inf:
            limit_s = found.limit()
        found.add(layout, limit_s)
        if watch:
            watch(done + 1, len(layouts), found.num_priced)
    return found.search()


def layouts_of(question: Question) -> list[Layout]:
    """The patterns of the space; on one chip they are all the same."""
    layouts = list(or_all(question.region.layouts, ground_of(question).patterns))
    return layouts if question.on.num_chips > 1 else layouts[:1]


class Found:
    """What a search has priced so far."""

    def __init__(self, question: Question, count: int) -> None:
        self._question, self._count = question, count
        self._sizes = sizes_of(question)
        self._ranked: list[_Ranked] = []
        self._fits: dict[object, bool] = {}
        self._alone: dict[tuple[int, int], Candidate] = {}  # by chunk and place in it
        self.num_priced = self._too_large = self._too_slow = 0

    def add(self, layout: Layout, limit_s: float) -> None:
        """Prices all layouts of a pattern, but for those whose pipeline alone takes too long."""
        ground = ground_of(self._question)
        asked, placed = ground.asked(layout), ground.placed(layout)
        for points, skipped in every_point(self._question, self._sizes, placed, limit_s):
            self._too_slow += skipped
            if len(points):
                chunk, priced, too_large = _rank(self._question, points, asked)
                self._ranked.append(chunk)
                self.num_priced += priced
                self._too_large += too_large

    def limit(self) -> float:
        """Seconds of the last that would be reported: what is slower need not be priced."""
        best = self.best()
        if len(best) < self._count or not self._question.region.must_fit:
            return math.inf
        return max(c.time.expected_s(self._question.overlap) for c in best)

    def best(self) -> list[Candidate]:
        """The first of each degrees that fit; most of those in order differ in placement only."""
        found: dict[object, Candidate] = {}
        for number, index in _in_order(self._ranked):
            chunk = self._ranked[number]
            degrees = chunk.degrees(index)
            if degrees not in found and self._fit(degrees, chunk, index):
                found[degrees] = self._priced((number, index))
            if len(found) == self._count:
                break
        return list(found.values())

    def _priced(self, at: tuple[int, int]) -> Candidate:
        """A layout on its own, once: the limit and the answer ask for the same ones."""
        if at not in self._alone:
            chunk, index = self._ranked[at[0]], at[1]
            candidate = price_one(self._question, *chunk.named(index))
            self._alone[at] = self._checked(candidate, float(chunk.expected_s[index]))
        return self._alone[at]

    def _checked(self, candidate: Candidate, swept_s: float) -> Candidate:
        """Priced alone and among all, a layout takes the same time."""
        alone_s = candidate.time.expected_s(self._question.overlap)
        if not math.isclose(alone_s, swept_s, rel_tol=TIE):
            raise ModelError(
                f"{candidate.layout.text} on {candidate.mesh} takes {alone_s} s alone and"
                f" {swept_s} s in the search"
            )
        return candidate

    def _fit(self, degrees: object, chunk: _Ranked, index: int) -> bool:
        """Memory does not depend on where the axes lie, so each size is asked once."""
        key = degrees, *chunk.option_at(index)
        if key not in self._fits:
            held = held_by(self._question, *chunk.named(index))
            self._fits[key] = held.fits or not self._question.region.must_fit
        return self._fits[key]

    def search(self) -> Search:
        best = tuple(self.best())
        unfit = sum(not fits for fits in self._fits.values())
        return Search(best, self.num_priced, self._too_large, self._too_slow, unfit)


def sizes_of(question: Question) -> Sizes:
    q = question
    return Sizes(
        q.graph, q.batch, q.seq, q.dtype, kept_by(q.graph, or_all(q.region.remats, POLICIES))
    )


def every_point(
    question: Question, sizes: Sizes, placed: Placed, limit_s: float
) -> Iterator[tuple[Points, int]]:
    """All points of a pattern that divide, a chunk at a time; and how many were skipped."""
    meshes = placed.meshes
    for dim, axes in placed.splits:
        if dim == "B" and meshes.count:
            split = math.prod((meshes.ways(a) for a in axes), start=np.ones(1, np.int64))
            meshes = meshes.only(question.batch % split == 0)
    if meshes.count and any(dim != "B" for dim, _ in placed.splits):  # tokens that are routed
        every = np.arange(meshes.count)
        points = Points(sizes, meshes, every, np.ones(1, np.int64), np.zeros_like(every))
        meshes = meshes.only(points.divides(placed.splits))
    if meshes.count and question.region.axes:
        meshes = meshes.only(question.region.on(meshes))
    yield from _chunks(question, sizes, meshes, limit_s)


def ground_of(question: Question) -> Groundwork:
    return groundwork_of(question.graph, question.on, question.seq)


def _chunks(
    question: Question, sizes: Sizes, meshes: Meshes, limit_s: float
) -> Iterator[tuple[Points, int]]:
    """Every mesh with every number of microbatches that leaves each data shard whole sequences."""
    counts = np.array(question.region.counts(microbatch_counts(question.batch)), np.int64)
    if not meshes.count or not len(counts):
        return
    data, stages, shape_of = meshes.shapes()
    divides = question.batch // counts % data[:, None] == 0
    skipped = 0
    if limit_s < math.inf:
        soon = least_seconds(question, stages[:, None], counts) <= limit_s * _SAFE
        times = np.bincount(shape_of, minlength=len(data))
        skipped = int(((divides & ~soon).sum(axis=1) * times).sum())
        divides &= soon
    mesh_of, which = np.nonzero(divides[shape_of])
    for start in range(0, len(mesh_of) or 1, _CHUNK):
        part = slice(start, start + _CHUNK)
        yield Points(sizes, meshes, mesh_of[part], counts, which[part]), skipped
        skipped = 0


def least_seconds(question: Question, stages: Ints, counts: Ints) -> Floats:
    """No layout with so many stages and microbatches is faster, whatever its mesh.

    Products take at least their FLOPs over the peak, on the average stage. The backward rounds
    alone have as many, since each runs its stage again; the shortest bubble of `SCHEDULES` has
    (S - 1) / v of them beyond the microbatches (interleaved).
    """
    q, chip = question, question.on.chip
    flops = training_flops(q.graph, batch=q.batch, seq=q.seq, causal=True)
    ideal_s = flops / q.on.num_chips / chip.peak_flops(chip.matmul_dtype(q.dtype.name))
    shortest = min(1 / v for _, v in SCHEDULES)
    return ideal_s * (1 + (stages - 1) * shortest / counts)


def _rank(question: Question, points: Points, asked: Asked) -> tuple[_Ranked, int, int]:
    """Prices every option of a chunk that may fit; how many there are, and how many cannot."""
    few, of = points.alike
    least = LeastMemory(few, question.recipe)
    must_fit, times = question.region.must_fit, np.bincount(of)
    hbm_bytes = usable_hbm_bytes(question.on.chip)
    options: list[tuple[Microbatching, Remat]] = []
    held: list[Floats] = []
    may: list[Bools] = []
    num = num_too_large = 0
    for micro, remat in _options(points.layout, question.region):
        allowed = _allowed(micro, few, len(question.graph.order))
        nbytes = least.bytes(micro, remat)
        fits = nbytes <= hbm_bytes if must_fit else nbytes > 0
        num += int(times[allowed].sum())
        num_too_large += int(times[allowed & ~fits].sum())
        if (allowed & fits).any():
            options.append((micro, remat))
            held.append(nbytes)
            may.append(allowed & fits)
    if not options:
        none = np.zeros(0, np.int64)
        return _Ranked(points, options, np.zeros(0), np.zeros(0), none, none), num, num_too_large
    is_left = np.logical_or.reduce(may)[of]
    points, of = points.only(is_left), of[is_left]
    steps = Steps(points, layer_times(points, asked))
    keys: list[Floats] = []
    expected_s: list[Floats] = []
    at: list[Ints] = []
    option: list[Ints] = []
    for i, (micro, remat) in enumerate(options):
        found = steps.composed(micro, remat, question.overlap)
        chosen = np.flatnonzero(may[i][of])
        ranked = rank(found.expected_s[chosen], found.collectives_s[chosen])
        keys.append(ranked if must_fit else held[i][of[chosen]])
        expected_s.append(found.expected_s[chosen])
        at.append(chosen)
        option.append(np.full(len(chosen), i))
    keyed, seconds = map(np.concatenate, (keys, expected_s))
    where, which = map(np.concatenate, (at, option))
    return _Ranked(points, options, keyed, seconds, where, which), num, num_too_large


def _options(layout: Layout, region: Region) -> Iterator[tuple[Microbatching, Remat]]:
    """Schedules and remat policies; without a pipeline there is nothing to schedule."""
    schedules = or_all(region.schedules, SCHEDULES)
    for schedule, virtual in schedules if layout.stages else SCHEDULES[:1]:
        for remat in or_all(region.remats, POLICIES):
            yield Microbatching(1, schedule, virtual), remat


def _allowed(micro: Microbatching, points: Points, num_layers: int) -> Bools:
    """Where the schedule has a table: enough layers, and microbatches that suit the stages."""
    if not points.layout.stages:
        return np.ones(len(points), np.bool_)
    stages, counts = points.distinct_stages, points.distinct_counts
    table = _runs(micro, tuple(stages.tolist()), tuple(counts.tolist()), num_layers)
    return table[points.stages_of, points.count_of]


@lru_cache(maxsize=512)  # patterns have the same numbers of stages, and a batch its counts
def _runs(
    micro: Microbatching, stages: tuple[int, ...], counts: tuple[int, ...], num_layers: int
) -> Bools:
    return np.array([[can_run(micro, s, m, num_layers) for m in counts] for s in stages])


def can_run(micro: Microbatching, stages: int, count: int, num_layers: int) -> bool:
    """Whether the search considers a schedule on so many stages and microbatches."""
    enough = stages * micro.virtual <= num_layers
    return enough and (stages == 1 or BUBBLES[micro.schedule].allows(stages, count))


def rank(expected_s: Floats, collectives_s: Floats) -> Floats:
    """The order of layouts: bands of a thousandth, in a band by the time of all collectives."""
    band = np.floor(np.log(expected_s) / _BAND)
    return band + np.round(collectives_s / (collectives_s + expected_s) / 2, 9)


def _in_order(ranked: Sequence[_Ranked]) -> Iterator[tuple[int, int]]:
    """All layouts by key, ties as they come, each as its chunk and its place there.

    Only as many are sorted as are looked at.
    """
    keys = np.concatenate([r.keys for r in ranked]) if ranked else np.zeros(0)
    ends = np.cumsum([len(r.keys) for r in ranked])
    seen = -np.inf
    size = 256
    while True:
        later = np.flatnonzero(keys > seen)
        if not len(later):
            return
        limit = np.partition(keys[later], min(size, len(later)) - 1)[min(size, len(later)) - 1]
        batch = later[keys[later] <= limit]
        for at in np.argsort(keys[batch], kind="stable"):
            index = int(batch[at])
            chunk = int(np.searchsorted(ends, index, side="right"))
            yield chunk, index - int(ends[chunk]) + len(ranked[chunk].keys)
        seen, size = limit, size * 4

"""A step's time against its batch, scheme by scheme: the figures of the book's chapter 5.

In: a `Question` and the candidate that answers it. Out: `SchemeCurve`s: what a step of every batch
spends on matmuls and on collectives. As in the book, memory is not asked and a step is one
microbatch, so a curve says the roofline bound. Unlike there, only layouts that divide count: a
curve begins with the smallest batch that its schemes can split. The candidate's own curve keeps its
mesh and the size of its microbatches, so it passes through the plan.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rooflight.costs.mesh_sweep import Floats
from rooflight.errors import ShardingError
from rooflight.hardware.mesh import Mesh
from rooflight.models.layout.rules import Layout, parse_layout
from rooflight.plan.training.memory.job import Microbatching
from rooflight.plan.training.memory.remat import Remat
from rooflight.plan.training.search.cache import Asked, every_point
from rooflight.plan.training.search.candidate import Candidate, Question, step_of
from rooflight.plan.training.search.options import can_run
from rooflight.plan.training.search.ranked import rank
from rooflight.plan.training.search.region import Region
from rooflight.plan.training.search.run import cache_of, sizes_of
from rooflight.plan.training.time.compose import StepSweep, layer_times
from rooflight.plan.training.time.stage_time import Overlap
from rooflight.plan.training.time.step_time import StepTime
from rooflight.plan.training.time.sweep import Points

# The second template is for slices with a factor, such as the 5 and 7 of 8,960 chips, that divides
# no weight: an axis of plain data parallelism takes it, and no more than it.
FAMILIES: Mapping[str, tuple[str, ...]] = {
    "fsdp": ("fsdp=X", "dp=Z,fsdp=X"),
    "fsdp and context": ("fsdp=X,cp=Y", "dp=Z,fsdp=X,cp=Y"),
    "tensor": ("sp=Y",),
    "fsdp and tensor": ("fsdp=X,sp=Y", "dp=Z,fsdp=X,sp=Y"),
}
_HALVED, _DOUBLED = 8, 4  # how often the asked batch is


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """A layout on a mesh at one batch."""

    tokens: int
    mesh: Mesh
    time: StepTime


@dataclass(frozen=True, slots=True)
class SchemeCurve:
    """One family of schemes at the batches that it divides; there may be none."""

    name: str
    layout: str
    points: tuple[CurvePoint, ...]

    def matmuls_bind_from(self, overlap: Overlap) -> int | None:
        """The smallest batch from which on collectives hide behind matmuls; None if never."""
        found: int | None = None
        for point in reversed(self.points):
            if point.time.binds(overlap) != "matmuls":
                break
            found = point.tokens
        return found

    def at(self, tokens: int) -> CurvePoint | None:
        return next((p for p in self.points if p.tokens == tokens), None)


def batches_around(batch: int) -> tuple[int, ...]:
    """The batch halved while it stays whole, and doubled.

    >>> batches_around(12)
    (3, 6, 12, 24, 48, 96, 192)
    """
    halves = [batch >> i for i in range(_HALVED, 0, -1) if batch % (1 << i) == 0]
    return (*halves, *(batch << i for i in range(_DOUBLED + 1)))


def time_by_batch(question: Question, best: Candidate) -> tuple[SchemeCurve, ...]:
    """A curve for each family, at the remat policy of the candidate; its own curve is last."""
    own = SchemeCurve("this plan", best.layout.text, tuple(_own_points(question, best)))
    if question.on.num_chips == 1:
        return (own,)
    return (*(_family(question, name, texts, best) for name, texts in FAMILIES.items()), own)


def _family(question: Question, name: str, texts: Sequence[str], best: Candidate) -> SchemeCurve:
    """The first template that divides any batch."""
    for text in texts:
        points = tuple(_points(question, parse_layout(text), best))
        if points:
            return SchemeCurve(name, text, points)
    return SchemeCurve(name, texts[0], ())


def _points(question: Question, layout: Layout, best: Candidate) -> Iterator[CurvePoint]:
    asked = cache_of(question).asked(layout)
    in_one_piece = Region(remats=(best.remat,), num_microbatches=1)
    for batch in batches_around(question.batch):
        at_batch = replace(question, batch=batch, region=in_one_piece)
        mesh = _best_mesh(at_batch, layout, asked, best.remat)
        if mesh:
            time = step_of(at_batch, layout, mesh, Microbatching(), best.remat)
            yield CurvePoint(batch * question.seq, mesh, time)


def _best_mesh(question: Question, layout: Layout, asked: Asked, remat: Remat) -> Mesh | None:
    """The first in the order of the search, of all placements that divide."""
    found: list[tuple[float, Mesh]] = []
    placed = cache_of(question).placed(layout)
    for points in every_point(question, sizes_of(question), placed):
        steps = StepSweep(points, layer_times(points, asked), question.overlap)
        composed = steps.seconds(Microbatching(), remat)
        keys = rank(composed.total, composed.collectives)
        keys[_copies(points) > _copies(points).min()] = math.inf
        at = int(keys.argmin())
        found.append((float(keys[at]), points.meshes.mesh(int(points.mesh_of[at]))))
    return min(found, key=lambda f: f[0])[1] if found else None


def _copies(points: Points) -> Floats:
    """How often plain data parallelism keeps the same weights, beside FSDP."""
    return points.ways.get("Z", np.ones(len(points)))


def _own_points(question: Question, best: Candidate) -> Iterator[CurvePoint]:
    """The candidate's own mesh, with as many microbatches of the same size as a batch has."""
    size = question.batch // best.micro.count
    for batch in batches_around(question.batch):
        if batch % min(size, batch) == 0:
            micro = replace(best.micro, count=max(1, batch // size))
            time = _time_or_none(replace(question, batch=batch), best, micro)
            if time:
                yield CurvePoint(batch * question.seq, best.mesh, time)


def _time_or_none(question: Question, best: Candidate, micro: Microbatching) -> StepTime | None:
    """None where a batch does not divide over the mesh, or does not suit the schedule."""
    layers, framework = len(question.graph.order), question.framework
    if not can_run(micro, best.num_stages, micro.count, layers, framework):
        return None
    try:
        return step_of(question, best.layout, best.mesh, micro, best.remat)
    except ShardingError:
        return None

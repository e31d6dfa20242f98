"""The matmuls of a training step on one chip, for a roofline: FLOPs, bytes and seconds of each.

In: a `Question` and a candidate. Out: `MatmulGroup`s, what takes longest first.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from rooflight.models.graph.count import dim_sizes
from rooflight.plan.training.derive.algorithm import derive_algorithm
from rooflight.plan.training.search.candidate import Candidate, Question
from rooflight.plan.training.time.stage_time import HEAD
from rooflight.plan.training.time.step_time import layer_runs


@dataclass(frozen=True, slots=True)
class MatmulGroup:
    """Ops of the same FLOPs and bytes, forward and backward, in a step's work of one chip.

    Of a pipeline it is the average stage; what a remat policy recomputes is not counted.
    """

    ops: tuple[str, ...]
    flops: float
    nbytes: float
    seconds: float
    binds: str  # the roof that is lower

    @property
    def intensity(self) -> float:
        """FLOPs for each byte of HBM traffic."""
        return self.flops / self.nbytes

    @property
    def flops_per_s(self) -> float:
        return self.flops / self.seconds


@dataclass(frozen=True, slots=True)
class _MatmulLine:
    """One line of a layer, all layers of its kind and all microbatches together."""

    op: str
    each: tuple[float, int]  # FLOPs and bytes of one
    flops: float
    nbytes: float
    seconds: float
    binds: str


def matmuls_of(question: Question, candidate: Candidate) -> tuple[MatmulGroup, ...]:
    """Every matmul of all layers and the head, those that are alike together."""
    alike: dict[tuple[float, int], list[_MatmulLine]] = {}
    for spent in _spent(question, candidate):
        alike.setdefault(spent.each, []).append(spent)
    found = [
        MatmulGroup(
            tuple(dict.fromkeys(s.op for s in group)),
            sum(s.flops for s in group),
            sum(s.nbytes for s in group),
            sum(s.seconds for s in group),
            group[0].binds,
        )
        for group in alike.values()
    ]
    return tuple(sorted(found, key=lambda p: -p.seconds))


def _spent(question: Question, candidate: Candidate) -> Iterator[_MatmulLine]:
    q, c = question, candidate
    dims = dim_sizes(q.graph, batch=q.batch // c.micro.count, seq=q.seq)
    layers = Counter(q.graph.order) + Counter([HEAD])
    for block, ops in layer_runs(q.graph):
        times = layers[block] * c.micro.count / c.num_stages
        run = derive_algorithm(q.graph, ops, c.layout, mesh=c.mesh, dims=dims, dtype=q.dtype)
        for line in run.spent:
            price = line.price
            if price.op:
                each = price.flops, price.nbytes
                total = (times * price.flops, times * price.nbytes, times * price.op.lower_s)
                yield _MatmulLine(line.op, each, *total, price.op.binds)

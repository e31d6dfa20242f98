"""What a layout may be run with: schedules of a pipeline and remat policies, by framework.

In: a question. Out: its options, and on which points each can run.
"""

from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from rooflight.costs.mesh_sweep import Bools
from rooflight.models.layout.rules import Layout
from rooflight.plan.training.memory.framework import Framework
from rooflight.plan.training.memory.job import Microbatching
from rooflight.plan.training.memory.remat import REMATS, Remat, parse_remat
from rooflight.plan.training.memory.template import Same
from rooflight.plan.training.search.candidate import Question
from rooflight.plan.training.search.region import or_all
from rooflight.plan.training.time.stages import BUBBLES
from rooflight.plan.training.time.sweep import Points

_VIRTUAL = (2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64)


def schedules_of(framework: Framework) -> tuple[tuple[str, int], ...]:
    """The schedules that a framework runs and the search prices."""
    virtual = [v for v in _VIRTUAL if v <= framework.max_virtual]
    if framework.in_step:
        virtual = [v for v in virtual if v in (2, 4)]
    return ("1f1b", 1), *(("interleaved", v) for v in virtual)


def policies_of(question: Question) -> tuple[Remat, ...]:
    """The remat policies of the framework; a policy of tensors that no layer makes is left out."""
    found = _policies(Same(question.graph), question.framework.remats)
    has_host = question.on.chip.pcie_bytes_per_s is not None
    return tuple(remat for remat in found if has_host or not remat.on_host)


@lru_cache(maxsize=64)
def _policies(graph: Same, names: tuple[str, ...]) -> tuple[Remat, ...]:
    made = {op.contraction.result.name for op in graph.graph.ops if op.block is not None}
    bare = {name: name.removesuffix("@host") for name in names}
    known = [n for n in names if bare[n] in REMATS or set(bare[n].split("+")) <= made]
    return tuple(parse_remat(name, graph.graph) for name in known)


def options_of(layout: Layout, question: Question) -> Iterator[tuple[Microbatching, Remat]]:
    """Schedules and remat policies; without a pipeline there is nothing to schedule."""
    region, every = question.region, schedules_of(question.framework)
    schedules = or_all(region.schedules, every)
    for schedule, virtual in schedules if layout.stages else every[:1]:
        for remat in or_all(region.remats, policies_of(question)):
            yield Microbatching(1, schedule, virtual), remat


def allowed_on(micro: Microbatching, points: Points, question: Question) -> Bools:
    """Where the schedule has a table: enough layers, and microbatches that suit the stages."""
    if not points.layout.stages:
        return np.ones(len(points), np.bool_)
    stages, counts = points.distinct_stages, points.distinct_counts
    num_layers, counted = len(question.graph.order), tuple(counts.tolist())
    table = _runs(micro, tuple(stages.tolist()), counted, num_layers, question.framework)
    return table[points.stages_of, points.count_of]


@lru_cache(maxsize=512)  # templates have the same numbers of stages, and a batch its counts
def _runs(
    micro: Microbatching,
    stages: tuple[int, ...],
    counts: tuple[int, ...],
    num_layers: int,
    framework: Framework,
) -> Bools:
    return np.array([[can_run(micro, s, m, num_layers, framework) for m in counts] for s in stages])


def can_run(
    micro: Microbatching, stages: int, count: int, num_layers: int, framework: Framework
) -> bool:
    """Whether the search considers a schedule on so many stages and microbatches.

    Interleaved, the last chunks may be the ends of a model alone, as the framework counts them.
    """
    chunks, is_whole = stages * micro.virtual, count % stages == 0
    most = num_layers + (framework.counted_ends if micro.virtual > 1 else 0)
    if chunks > most or (micro.virtual > 1 and not _is_even(num_layers, chunks)):
        return False
    if micro.virtual > 1 and framework.whole_turns and not is_whole:
        return False
    return stages == 1 or BUBBLES[micro.schedule].allows(stages, count)


def _is_even(num_layers: int, chunks: int) -> bool:
    """Whether chunks have the same layers, but for a few: the ends hold embedding and head."""
    return -num_layers % chunks <= num_layers / 16

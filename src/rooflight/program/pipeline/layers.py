"""Layers as the stages of a pipeline: which are where in the tree of weights.

In: a model and a `Schedule`. Out: a `Staging`. Layers are cut into stages, and all stages run one
order of kinds (`layout.staging`), as the planner has it. A place in that order for which a stage
has no layer is padding: it is run like any other and its result is left out.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rooflight.errors import UsageError
from rooflight.models.layout.slots import Schedule
from rooflight.models.layout.staging import Kinds, cut_layers, stage_kinds
from rooflight.models.spec import Block, ModelSpec, Repeat
from rooflight.program.pipeline.table import stage_order

PADDING = -1
_LONGEST_PATTERN = 8  # blocks that repeat together; Gemma 3 has 6


class LayerPath(NamedTuple):
    """Where in a tree of weights a layer is: run, block of its pattern, row of that stack."""

    run: int
    block: int
    row: int


@dataclass(frozen=True, slots=True)
class Staging:
    """What every stage runs, and which layer is at each place of each stage."""

    runs: tuple[Repeat, ...]
    layers: tuple[tuple[int, ...], ...]  # [stage in the order of `stage_order`][place]

    @property
    def stored(self) -> tuple[Repeat, ...]:
        """The runs as weights are stacked: those of one stage after those of the other."""
        return tuple(Repeat(run.blocks, run.times * len(self.layers)) for run in self.runs)

    def is_real(self, run: int) -> npt.NDArray[np.bool_] | None:
        """[stage, times, block of the pattern]: is there a layer? None if there always is."""
        start = sum(len(r.blocks) * r.times for r in self.runs[:run])
        size = len(self.runs[run].blocks) * self.runs[run].times
        here = np.array(self.layers)[:, start : start + size] != PADDING
        shape = (len(self.layers), self.runs[run].times, len(self.runs[run].blocks))
        return None if here.all() else here.reshape(shape)

    def places(self) -> Iterator[tuple[int, LayerPath]]:
        """Every layer of a stage, padding too, and its place in the tree of `stored`."""
        for row, layers in enumerate(self.layers):
            found = iter(layers)
            for at, run in enumerate(self.runs):
                for time in range(run.times):
                    for block in range(len(run.blocks)):
                        yield next(found), LayerPath(at, block, row * run.times + time)


@lru_cache(maxsize=64)
def staging_of(model: ModelSpec, schedule: Schedule) -> Staging:
    """Cuts the layers of a model for a schedule.

    >>> from rooflight.models.layout.schedules import make_schedule
    >>> from rooflight.models.presets import load_model
    >>> schedule = make_schedule("1f1b", stages=16, microbatches=16)
    >>> found = staging_of(load_model("llama3.1-405b"), schedule)
    >>> [run.times for run in found.runs], found.layers[-1][-2:]
    ([8], (125, -1))
    """
    kinds = [model.blocks.index(block) for block in model.layer_blocks]
    if len(kinds) < schedule.num_stages:
        raise UsageError(
            f"{len(kinds)} layers cannot fill {schedule.num_stages} pipeline stages",
            hint=f"use at most {len(kinds)} stages, virtual ones counted",
        )
    chunks = cut_layers(len(kinds), schedule.num_stages)
    order = stage_kinds(tuple(kinds), schedule.num_stages)
    layers = tuple(_fit(chunks[stage], kinds, order) for stage in stage_order(schedule))
    return Staging(tuple(_repeats(order, model.blocks)), layers)


def _fit(chunk: range, kinds: Sequence[int], order: Kinds) -> tuple[int, ...]:
    """The layers of a chunk at the first places of their kinds, padding between them."""
    rest = list(chunk)
    return tuple(rest.pop(0) if rest and kinds[rest[0]] == kind else PADDING for kind in order)


def _repeats(order: Kinds, blocks: Sequence[Block]) -> Iterator[Repeat]:
    """The order as repeated patterns, each as long as it goes: what a program scans over."""
    rest = order
    while rest:
        period, times = max(_periods(rest), key=lambda found: (found[0] * found[1], -found[0]))
        yield Repeat(tuple(blocks[kind] for kind in rest[:period]), times)
        rest = rest[period * times :]


def _periods(order: Kinds) -> Iterator[tuple[int, int]]:
    """How long a pattern may be and how often the order begins with it; one layer at the least."""
    same = len(list(next(groupby(order))[1]))
    yield 1, same
    for period in range(2, min(_LONGEST_PATTERN, len(order) // 2) + 1):
        times = 1
        while order[times * period : (times + 1) * period] == order[:period]:
            times += 1
        if times > 1:
            yield period, times


def whole(model: ModelSpec) -> Staging:
    """All layers as one stage, stacked by the model's own runs."""
    return Staging(model.layers, (tuple(range(len(model.layer_blocks))),))

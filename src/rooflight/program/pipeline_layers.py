"""Layers as the stages of a pipeline: which are where in the tree of weights.

In: a model and a `Schedule`. Out: a `Staging`. Layers are cut into stages, and all stages run one
order of kinds (`graph.staging`), as the planner has it. A place in that order for which a stage has
no layer is padding: it is run like any other and its result is left out.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rooflight.errors import UsageError
from rooflight.graph.pipeline import Schedule
from rooflight.graph.staging import Kinds, cut_layers, stage_kinds
from rooflight.program.pipeline_table import stage_order
from rooflight.specs.model import Block, ModelSpec, Repeat

PADDING = -1
_LONGEST_PATTERN = 8  # blocks that repeat together; Gemma 3 has 6


class Place(NamedTuple):
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

    def places(self) -> Iterator[tuple[int, Place]]:
        """Every layer of a stage, padding too, and its place in the tree of `stored`."""
        for row, layers in enumerate(self.layers):
            found = iter(layers)
            for at, run in enumerate(self.runs):
                for time in range(run.times):
                    for block in range(len(run.blocks)):
                        yield next(found), Place(at, block, row * run.times + time)


@lru_cache(maxsize=64)
def staging_of(model: ModelSpec, schedule: Schedule) -> Staging:
    """Cuts the layers of a model for a schedule.

    >>> from rooflight.graph import make_schedule
    >>> from rooflight.specs import load_model
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


Layers = Sequence[Sequence[Mapping[str, Any]]]  # weights: [run][block of its pattern][name]
Stack = Callable[[list[Any]], Any]  # joins the weights of single layers, such as `numpy.stack`


def to_stages(model: ModelSpec, staging: Staging, layers: Layers, stack: Stack) -> Layers:
    """Weights stacked by the model's own runs as they are stacked by stage; padding is zeros."""
    home = _model_places(model)
    like = {block: i for i, block in enumerate(model.layer_blocks)}

    def weights(layer: int, place: Place) -> dict[str, Any]:
        if layer != PADDING:
            return _weights_at(layers, home[layer])
        there = home[like[staging.runs[place.run].blocks[place.block]]]
        return {name: one * 0 for name, one in _weights_at(layers, there).items()}

    found = [(place, weights(layer, place)) for layer, place in staging.places()]
    return _stacked(staging.runs, found, stack)


def from_stages(model: ModelSpec, staging: Staging, layers: Layers, stack: Stack) -> Layers:
    """The way back: of gradients, or for a checkpoint."""
    home = dict(staging.places())
    places = enumerate(_model_places(model))
    found = [(place, _weights_at(layers, home[layer])) for layer, place in places]
    return _stacked(model.layers, found, stack)


def _model_places(model: ModelSpec) -> list[Place]:
    """Where each layer is in a tree of the model's own runs."""
    whole = Staging(model.layers, (tuple(range(len(model.layer_blocks))),))
    return [place for _, place in whole.places()]


def _weights_at(layers: Layers, place: Place) -> dict[str, Any]:
    return {name: a[place.row] for name, a in layers[place.run][place.block].items()}


def _stacked(
    runs: Sequence[Repeat], found: Sequence[tuple[Place, dict[str, Any]]], stack: Stack
) -> Layers:
    by_place: list[list[dict[str, list[Any]]]] = [[{} for _ in run.blocks] for run in runs]
    for (run, block, _), weights in found:
        for name, one in weights.items():
            by_place[run][block].setdefault(name, []).append(one)
    return tuple(
        tuple({name: stack(parts) for name, parts in block.items()} for block in run)
        for run in by_place
    )

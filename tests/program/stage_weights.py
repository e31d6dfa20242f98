"""The weights of layers, stacked by the stages of a pipeline and back.

    W[L,...] of each run -> W[S_P,L/S,...] of each run of a stage, zeros where a stage has padding

In: a `Staging` and weights as arrays of any kind. Out: the same arrays in the other order.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rooflight.models.spec import ModelSpec, Repeat
from rooflight.program.pipeline.layers import PADDING, LayerPath, Staging, whole

Layers = Sequence[Sequence[Mapping[str, Any]]]  # weights: [run][block of its pattern][name]
Stack = Callable[[list[Any]], Any]  # joins the weights of single layers, such as `numpy.stack`


def to_stages(model: ModelSpec, staging: Staging, layers: Layers, stack: Stack) -> Layers:
    """Weights stacked by the model's own runs as they are stacked by stage; padding is zeros."""
    home = _model_places(model)
    like = {block: i for i, block in enumerate(model.layer_blocks)}

    def weights(layer: int, place: LayerPath) -> dict[str, Any]:
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


def _model_places(model: ModelSpec) -> list[LayerPath]:
    """Where each layer is in a tree of the model's own runs."""
    return [place for _, place in whole(model).places()]


def _weights_at(layers: Layers, place: LayerPath) -> dict[str, Any]:
    return {name: a[place.row] for name, a in layers[place.run][place.block].items()}


def _stacked(
    runs: Sequence[Repeat], found: Sequence[tuple[LayerPath, dict[str, Any]]], stack: Stack
) -> Layers:
    by_place: list[list[dict[str, list[Any]]]] = [[{} for _ in run.blocks] for run in runs]
    for (run, block, _), weights in found:
        for name, one in weights.items():
            by_place[run][block].setdefault(name, []).append(one)
    return tuple(
        tuple({name: stack(parts) for name, parts in block.items()} for block in run)
        for run in by_place
    )

"""Derivations that were made before, by the strategies that were chosen for their contractions.

In: ops, a `Layout`, and who chooses. Out: a `DerivedLayer`, as `derive` makes it. A search asks for
the same layers on thousands of meshes, and few choices of strategies ever win.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from rooflight.algebra.contract import Strategy
from rooflight.algebra.notation import Contraction
from rooflight.models.graph.ops import Graph, Op
from rooflight.models.layout.rules import Layout
from rooflight.plan.training.derive.derivation import Choose, DerivedLayer, derive, known_strategies
from rooflight.plan.training.memory.template import Same

_MOST_LAYERS = 256  # of some ops under a layout


@dataclass(slots=True)
class _LayerCache:
    """Layers by which strategies they have; those are kept, so that no other gets their place."""

    asked: tuple[Contraction, ...] = ()
    layers: dict[tuple[int, ...], tuple[DerivedLayer, tuple[Strategy, ...]]] = field(
        default_factory=dict[tuple[int, ...], tuple[DerivedLayer, tuple[Strategy, ...]]]
    )


def derive_again(graph: Graph, ops: Sequence[Op], layout: Layout, choose: Choose) -> DerivedLayer:
    """`derive`, from memory where the same strategies were chosen for the same ops before.

    What is asked for depends on the ops and the layout alone; a search asks for it on many meshes.
    """
    known = _known(graph, ops, layout)
    chosen = {contraction: choose(contraction) for contraction in known.asked}
    strategies = tuple(chosen.values())
    ids = tuple(map(id, strategies))
    found = known.layers.get(ids)
    if found is None:
        found = derive(graph, ops, layout, chosen.__getitem__), strategies
        if len(known.layers) >= _MOST_LAYERS:
            known.layers.clear()
        known.layers[ids] = found
    return found[0]


def contractions_of(graph: Graph, ops: Sequence[Op], layout: Layout) -> tuple[Contraction, ...]:
    """Every contraction of a layer, each once."""
    return _known(graph, ops, layout).asked


def _known(graph: Graph, ops: Sequence[Op], layout: Layout) -> _LayerCache:
    """Stages split no tensor: with and without them a layer is the same."""
    rules = (layout.weight, layout.stream, layout.inner, layout.scores, layout.cache or {})
    key = layout.combines, layout.cache is None, *(tuple(rule.items()) for rule in rules)
    known = _derived(Same(graph), tuple(map(id, ops)), key)
    if not known.asked:
        known.asked = tuple(dict.fromkeys(asked_contractions(graph, ops, layout)))
    return known


def asked_contractions(graph: Graph, ops: Iterable[Op], layout: Layout) -> list[Contraction]:
    """Every contraction of a layer, forward and backward, in order: no choice changes them."""
    seen: list[Contraction] = []

    def first(contraction: Contraction) -> Strategy:
        seen.append(contraction)
        return known_strategies(contraction)[0]

    derive(graph, ops, layout, first)
    return seen


@lru_cache(maxsize=256)
def _derived(graph: Same, ops: tuple[int, ...], layout: tuple[object, ...]) -> _LayerCache:
    del graph, ops, layout  # they are only looked up by; the graph keeps its ops
    return _LayerCache()

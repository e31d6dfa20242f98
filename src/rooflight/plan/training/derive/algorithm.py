"""The algorithm of a layer under a layout on a mesh: every derived step with its time.

In: the ops of a graph, a `Layout`, a mesh and sizes. Out: an `Algorithm` of `PricedStep`s. The
steps are those of `derivation`; `costs.pick` chooses between strategies.

Derivations that were made before, by the strategies that were chosen for their contractions. A
search asks for the same layers on thousands of meshes, and few choices of strategies ever win.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache

from rooflight.algebra.contract import Strategy
from rooflight.algebra.notation import Axes, Contraction
from rooflight.algebra.shapes import device_bytes, ways
from rooflight.algebra.steps import Step
from rooflight.costs.choose import Pricer, StepPrice, pick
from rooflight.costs.network import NetworkTime, collective_time
from rooflight.costs.roofline import contraction_time
from rooflight.dtypes import Dtype
from rooflight.hardware.mesh import Mesh
from rooflight.models.graph.ops import Graph, Op
from rooflight.models.layout.rules import Layout, scheme_axes
from rooflight.plan.training.derive.derivation import (
    Choose,
    Derived,
    DerivedLayer,
    Slot,
    Waits,
    derive,
    known_options,
    known_strategies,
    token_axes,
)
from rooflight.plan.training.memory.template import Same

SUM_BITS = 32  # of an element of what adds up on its way
_MOST_LAYERS = 256  # of some ops under a layout


@dataclass(frozen=True, slots=True)
class PricedStep:
    """One step with its time, the op it belongs to, and what waits for it (collectives only)."""

    op: str
    price: StepPrice
    waits: Waits
    slot: Slot = "F"
    saved: bool = False  # the forward pass has made this already; a program may keep it
    once: bool = False  # done once a step, however many microbatches
    visible: float = 1.0  # the part of the query-key pairs that an attention kernel computes
    hops: bool = False  # block by block from neighbour to neighbour, beside the op's own matmul

    @property
    def step(self) -> Step:
        return self.price.step


@dataclass(frozen=True, slots=True)
class Algorithm:
    """A layer forward and backward."""

    layout: Layout
    forward: tuple[PricedStep, ...]
    backward: tuple[PricedStep, ...]

    @property
    def spent(self) -> tuple[PricedStep, ...]:
        """The lines that take time: slices are free, and what the forward pass made is saved."""
        lines = (*self.forward, *self.backward)
        return tuple(x for x in lines if (x.price.op or x.price.network) and not x.saved)


def derive_algorithm(
    graph: Graph,
    ops: Iterable[Op],
    layout: Layout,
    *,
    mesh: Mesh,
    dims: Mapping[str, int],
    dtype: Dtype,
) -> Algorithm:
    """Derives and prices the steps of `ops`, in order, and of their gradients, in reverse.

    The tokens of an expert are padded to a multiple of the ways that tokens are split.
    """
    axes = mesh.axes
    sizes = pad_routed(dims, ways(token_axes(layout), axes))

    @cache
    def split(over: Axes) -> int:
        return ways(over, axes)

    def choose(contraction: Contraction) -> Strategy:
        options = known_options(contraction)
        legal = [o for o in options if all(sizes[dim] % split(over) == 0 for dim, over in o.splits)]
        if not legal:  # this says what does not divide
            return pick([o.strategy for o in options], dims=sizes, mesh=mesh, dtype=dtype).strategy
        fewest = min(o.reroutes for o in legal)
        direct = [o.strategy for o in legal if o.reroutes == fewest]
        if len(direct) == 1:  # nothing to compare: no price is needed
            return direct[0]
        return pick(direct, dims=sizes, mesh=mesh, dtype=dtype).strategy

    found = derive_again(graph, tuple(ops), layout, choose)
    pricer = Pricer(sizes, mesh, dtype)
    forward, back = (
        tuple(_priced(d, pricer, sizes, mesh, dtype) for d in side)
        for side in (found.forward, found.backward)
    )
    return Algorithm(layout, forward, back)


def pad_routed(dims: Mapping[str, int], multiple: int) -> dict[str, int]:
    """Rounds the tokens per expert receives (dims C, C2...) up to a multiple.

    >>> pad_routed({"B": 3, "C": 2458}, 16)
    {'B': 3, 'C': 2464}
    """
    return {d: -(-n // multiple) * multiple if is_routed(d) else n for d, n in dims.items()}


def is_routed(dim: str) -> bool:
    return dim.rstrip("0123456789") == "C"


def _priced(
    derived: Derived, pricer: Pricer, dims: Mapping[str, int], mesh: Mesh, dtype: Dtype
) -> PricedStep:
    op = derived.op
    price = pricer.price(derived.step)
    visible = visible_part(op, dims) if price.op else 1.0
    if price.op and op.mask:
        price = _as_kernel(price, visible, dims, mesh, dtype)
    if derived.hops:
        price = replace(price, network=_hops_time(price, mesh, dtype))
    return PricedStep(
        *(op.name, price, derived.waits, derived.slot, derived.saved, derived.once, visible),
        derived.hops,
    )


def _hops_time(price: StepPrice, mesh: Mesh, dtype: Dtype) -> NetworkTime:
    """All hops of a gather one after the other, or of a sum, whose blocks are fp32 and come home.

    A block is one of n: n - 1 hops bring all of them by, and n bring a sum to where it belongs.
    """
    group = mesh.group(price.step.axes)
    is_sum = price.step.op == "reduce_scatter"
    block = price.nbytes / group.size * (SUM_BITS / dtype.bits_per_element if is_sum else 1)
    one = collective_time("permute", block, group)
    n = group.size - (not is_sum)
    return replace(
        one,
        lower_s=n * one.lower_s,
        expected_s=n * (one.bandwidth_s + one.latency_s),
        upper_s=n * one.upper_s,
        bandwidth_s=n * one.bandwidth_s,
        latency_s=n * one.latency_s,
        tiers=tuple(
            replace(t, bandwidth_s=n * t.bandwidth_s, latency_s=n * t.latency_s) for t in one.tiers
        ),
    )


def visible_part(op: Op, dims: Mapping[str, int]) -> float:
    """The part of all query-key pairs that a causal mask and a window let through."""
    if op.mask is None:
        return 1.0
    queries, keys = dims["T"], dims["S"]
    return op.mask.pairs(queries, keys, causal=True) / (queries * keys)


def _as_kernel(
    price: StepPrice, visible: float, dims: Mapping[str, int], mesh: Mesh, dtype: Dtype
) -> StepPrice:
    """An attention kernel skips masked pairs and never writes the scores to memory."""
    step, chip = price.step, mesh.slice.chip
    stored = [t for t in (*step.inputs, step.output) if not {"T", "S"} <= set(t.dims)]
    moved = sum(device_bytes(t, dims, mesh.axes, dtype) for t in stored)
    flops = price.flops * visible
    compute = chip.matmul_dtype(dtype.name)
    kernel = contraction_time(chip, flops=flops, bytes_moved=moved, compute=compute)
    return replace(price, nbytes=moved, flops=flops, op=kernel)


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
    modes = *layout.modes.items(), *(scheme_axes(layout)[name] for name in layout.modes)
    key = modes, layout.combines, layout.cache is None, *(tuple(rule.items()) for rule in rules)
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

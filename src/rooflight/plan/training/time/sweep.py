"""One template, every mesh and every number of microbatches, as arrays.

In: a template on all its meshes. Out: `Points` (a mesh with a number of microbatches each): sizes
of blocks, seconds of matmuls and collectives, and which strategies win. The steps of a template
are derived once for each combination that wins somewhere; collectives of a group share its rate.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import numpy as np

from rooflight.algebra.contract import Strategy
from rooflight.algebra.notation import Axes, Contraction, Tensor
from rooflight.algebra.steps import Step
from rooflight.costs.choose import TIE
from rooflight.costs.mesh_sweep import Bools, Floats, Ints
from rooflight.costs.rates import TierRates
from rooflight.costs.roofline import memory_bytes_per_s
from rooflight.dtypes import Dtype
from rooflight.models.graph.count import dim_sizes
from rooflight.models.graph.ops import Graph
from rooflight.models.layout.rules import Layout
from rooflight.plan.training.derive.algorithm import SUM_BITS, contractions_of, is_routed
from rooflight.plan.training.derive.derivation import Split, known_options, splits_of, token_axes
from rooflight.plan.training.memory.remat import Remat, SavedActivations, keep
from rooflight.plan.training.search.space import LARGEST_CODE, Meshes, first_alike
from rooflight.plan.training.time.step_time import layer_runs


@dataclass(frozen=True, slots=True)
class Workload:
    """What is trained: the graph, its sequences, the numbers' format; what each policy keeps."""

    graph: Graph
    batch: int
    seq: int
    dtype: Dtype
    saved: Mapping[str, Mapping[int, SavedActivations]]  # by remat policy and block


class Points:
    """Meshes of a template, each with a number of microbatches; sizes and rates as arrays."""

    def __init__(
        self, sizes: Workload, meshes: Meshes, mesh_of: Ints, counts: Ints, count_of: Ints
    ) -> None:
        self.sizes, self.meshes, self.mesh_of = sizes, meshes, mesh_of
        self.distinct_counts, self.count_of = counts, count_of
        layout = meshes.layout
        axes = (*layout.stages, *layout.split_over)
        self.ways = {a: meshes.ways(a)[mesh_of].astype(np.float64) for a in axes}
        stages = self.split(layout.stages).astype(np.int64) * np.ones_like(mesh_of)
        self.distinct_stages, self.stages_of = np.unique(stages, return_inverse=True)
        self._rates: dict[tuple[str, frozenset[str], int], TierRates] = {}
        self._elements: dict[tuple[tuple[str, ...], frozenset[str]], Floats] = {}
        self._seconds: dict[object, Floats] = {}

    def __len__(self) -> int:
        return len(self.mesh_of)

    @property
    def layout(self) -> Layout:
        return self.meshes.layout

    @property
    def count(self) -> Ints:
        """Microbatches."""
        return self.distinct_counts[self.count_of]

    @property
    def num_stages(self) -> Ints:
        return self.distinct_stages[self.stages_of]

    @cached_property
    def alike(self) -> tuple["Points", Ints]:
        """One point of each ways and microbatches, and which of them every point is like.

        Where the axes lie changes collectives, and neither what a chip holds nor its matmuls.
        """
        first, of = first_alike([self.count_of, *self.ways.values()])
        return self.only(first), of

    def only(self, which: Ints | Bools) -> "Points":
        """Some of the points."""
        return Points(
            self.sizes, self.meshes, self.mesh_of[which], self.distinct_counts, self.count_of[which]
        )

    def on_own_meshes(self) -> "Points":
        """The same points on the meshes that they have: rates of no other are worked out."""
        used, mesh_of = np.unique(self.mesh_of, return_inverse=True)
        if 2 * len(used) > self.meshes.count:  # where they have most, rates are saved for all
            return self
        meshes = self.meshes.alone(used)
        return Points(self.sizes, meshes, mesh_of, self.distinct_counts, self.count_of)

    @cached_property
    def dims(self) -> dict[str, Floats]:
        """B is a microbatch's; C is padded as `algorithm.pad_routed` does."""
        batch, graph, seq = self.sizes.batch, self.sizes.graph, self.sizes.seq
        counts, inverse = self.distinct_counts, self.count_of
        each = [dim_sizes(graph, batch=batch // int(n), seq=seq) for n in counts]
        tokens = self.split(token_axes(self.layout))
        dims: dict[str, Floats] = {}
        for name in each[0]:
            values = np.array([d[name] for d in each], np.float64)
            found = values[inverse] if len(set(values)) > 1 else values[:1]
            dims[name] = np.ceil(found / tokens) * tokens if is_routed(name) else found
        return dims

    def split(self, axes: Iterable[str]) -> Floats:
        return math.prod((self.ways[a] for a in axes), start=np.ones(1))

    def divides(self, splits: Iterable[Split]) -> Bools:
        """Where every block is whole."""
        whole = np.ones(len(self), np.bool_)
        for dim, axes in splits:
            whole &= self.dims[dim] % self.split(axes) == 0
        return whole

    def elements(self, tensor: Tensor, without: Axes = ()) -> Floats:
        """What a chip holds of a tensor if some axes did not split it."""
        axes = frozenset(tensor.sharded_over) - set(without)
        key = tensor.dims, axes
        if key not in self._elements:
            whole = math.prod((self.dims[d] for d in tensor.dims), start=np.ones(1))
            self._elements[key] = whole / self.split(axes)
        return self._elements[key]

    def collective(self, step: Step) -> Floats:
        """Seconds of a collective: `Step.elements` in bytes at the rate of its group."""
        larger = step.larger
        without = step.axes if step.op == "all_to_all" else ()
        key = step.op, frozenset(step.axes), *placing(larger)
        if key not in self._seconds:
            nbytes = self.bytes(self.elements(larger, without))
            self._seconds[key] = self.rates(step.op, step.axes).seconds(nbytes)
        return self._seconds[key]

    def hops(self, step: Step) -> tuple[Floats, Floats, Floats]:
        """Of a collective in hops: how many, the bytes of one, and the devices around the ring.

        Gathered blocks pass all other devices; sums, in fp32, come home as well.
        """
        devices, is_sum = self.split(step.axes), step.op == "reduce_scatter"
        block = self.elements(step.larger) / devices
        nbytes = block * SUM_BITS / 8 if is_sum else self.bytes(block)
        return devices - (not is_sum), nbytes, devices

    def bytes(self, elements: Floats) -> Floats:
        return elements * (self.sizes.dtype.bits_per_element / 8)

    def rates(self, op: str, axes: Axes, copies: int = 1) -> TierRates:
        """`Meshes.rates` of every point."""
        key = op, frozenset(axes), copies
        if key not in self._rates:
            self._rates[key] = self.meshes.rates(op, axes, copies).at(self.mesh_of)
        return self._rates[key]

    def matmul(self, step: Step, visible: float = 1.0, *, kernel: bool = False) -> Floats:
        """Seconds of a local matmul; a kernel skips masked pairs and keeps its scores."""
        key = *map(placing, (*step.inputs, step.output)), visible, kernel
        if key not in self._seconds:
            few, of = self.alike
            seconds = few._matmul(step, visible, kernel=kernel)
            self._seconds[key] = seconds[of] if len(seconds) > 1 else seconds
        return self._seconds[key]

    def _matmul(self, step: Step, visible: float, *, kernel: bool) -> Floats:
        chip, dtype = self.meshes.slice.chip, self.sizes.dtype
        dims = dict.fromkeys(d for t in step.inputs for d in t.dims)
        axes = dict.fromkeys(a for t in step.inputs for a in t.sharded_over)
        done = math.prod((self.dims[d] for d in dims), start=np.ones(1)) / self.split(axes)
        stored = [
            t for t in (*step.inputs, step.output) if not (kernel and {"T", "S"} <= set(t.dims))
        ]
        moved = self.bytes(sum((self.elements(t) for t in stored), np.zeros(1)))
        flops_s = 2 * done * visible / chip.peak_flops(chip.matmul_dtype(dtype.name))
        return np.maximum(flops_s, moved / memory_bytes_per_s(chip))


@dataclass(frozen=True, slots=True)
class _Option:
    """A strategy, and what it needs to divide beyond what the contraction itself asks."""

    strategy: Strategy
    needs: frozenset[Split]
    reroutes: int
    likeness: object  # options alike in this are priced alike


@lru_cache(maxsize=8192)
def viable(contraction: Contraction) -> tuple[_Option, ...]:
    """The strategies that can win on some mesh.

    One with more reroutes is taken only where the others do not divide, so it can never be taken
    if one with fewer reroutes needs no more than it does.
    """
    asked = splits_of((*contraction.operands, contraction.result))
    options = [
        _Option(o.strategy, o.splits - asked, o.reroutes, _priced_by(o.strategy))
        for o in known_options(contraction)
    ]
    return tuple(
        o
        for o in options
        if not any(p.reroutes < o.reroutes and p.needs <= o.needs for p in options)
    )


def _priced_by(strategy: Strategy) -> object:
    matmul = strategy.matmul
    sent = (
        (s.op, frozenset(s.axes), placing(s.larger), strategy.streams(s))
        for s in strategy.collectives
    )
    return *sent, *map(placing, (*matmul.inputs, matmul.output)), len(strategy.steps)


@dataclass(slots=True)
class Chooser:
    """The best strategy of each contraction on every point, by the rule of `costs.pick`."""

    points: Points
    options: dict[Contraction, tuple[_Option, ...]] = field(
        default_factory=dict[Contraction, tuple[_Option, ...]]
    )
    picks: dict[Contraction, Ints] = field(default_factory=dict[Contraction, Ints])
    _alike: dict[object, Ints] = field(default_factory=dict[object, Ints])

    def pick(self, contraction: Contraction) -> Ints:
        if contraction not in self.picks:
            options = self.options[contraction] = viable(contraction)
            key = tuple((o.likeness, o.needs, o.reroutes) for o in options)
            if key not in self._alike:
                self._alike[key] = self._pick(options)
            self.picks[contraction] = self._alike[key]
        return self.picks[contraction]

    def _pick(self, options: Sequence[_Option]) -> Ints:
        size = len(self.points)
        if len(options) == 1:
            return np.zeros(size, np.int64)
        few, of = self.points.alike
        legal = np.stack([few.divides(o.needs)[of] for o in options])
        reroutes = np.array([[o.reroutes] for o in options], np.float64)
        fewest = np.min(np.where(legal, reroutes, np.inf), axis=0)
        priced = [self._price(o.strategy) for o in options]
        shape = (len(options), size)
        expected, moved = (
            np.stack([np.broadcast_to(p[i], shape[1:]) for p in priced]) for i in (0, 1)
        )
        expected = np.where(legal & (reroutes == fewest), expected, np.inf)
        tied = expected <= expected.min(axis=0) * (1 + TIE)
        moved = np.where(tied, moved, np.inf)
        tied &= moved == moved.min(axis=0)
        steps = np.array([[len(o.strategy.steps)] for o in options], np.float64)
        return np.where(tied, steps, np.inf).argmin(axis=0)

    def _price(self, strategy: Strategy) -> tuple[Floats, Floats]:
        """Expected seconds, as `costs.Price` has them, and bytes of all collectives."""
        network = streamed = moved = np.zeros(1)
        for step in strategy.collectives:
            seconds = self.points.collective(step)
            network = network + seconds
            if strategy.streams(step):
                streamed = streamed + seconds
            moved = moved + self._moved(step)
        local = self.points.matmul(strategy.matmul)
        return np.maximum(local, streamed) + network - streamed, moved

    def _moved(self, step: Step) -> Floats:
        larger = step.larger
        if step.op == "permute":
            return self.points.bytes(self.points.elements(larger)) * self.points.split(step.axes)
        without = step.axes if step.op == "all_to_all" else ()
        return self.points.bytes(self.points.elements(larger, without))


def saved_by(graph: Graph, remats: Iterable[Remat]) -> dict[str, dict[int, SavedActivations]]:
    """What each policy keeps of each kind of layer, and recomputes."""
    return {r.name: {block: keep(ops, r) for block, ops in layer_runs(graph)} for r in remats}


def contractions(graph: Graph, layout: Layout) -> dict[int, tuple[Contraction, ...]]:
    """Every contraction of each kind of layer, each once."""
    return {block: contractions_of(graph, ops, layout) for block, ops in layer_runs(graph)}


def combinations_of(
    chooser: Chooser, asked: Sequence[Contraction]
) -> list[tuple[Ints, dict[Contraction, Strategy]]]:
    """The points on which the same strategies win, with those strategies."""
    code, radix = np.zeros(len(chooser.points), np.int64), 1
    for contraction in asked:
        picks = chooser.pick(contraction)
        options = len(chooser.options[contraction])
        if radix * options >= LARGEST_CODE:
            codes, code = np.unique(code, return_inverse=True)
            radix = len(codes)
        code, radix = code * options + picks, radix * options
    _, first, inverse = np.unique(code, return_index=True, return_inverse=True)
    return [
        (
            np.flatnonzero(inverse == i),
            {c: chooser.options[c][chooser.picks[c][at]].strategy for c in asked},
        )
        for i, at in enumerate(first)
    ]


def placing(tensor: Tensor) -> tuple[tuple[str, ...], frozenset[str]]:
    """What the size of a tensor's block depends on."""
    return tensor.dims, frozenset(tensor.sharded_over)

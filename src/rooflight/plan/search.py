"""Which layout? Every placement of every pattern of schemes is priced; the best are exact.

In: a graph, a slice, a batch. Out: `Candidate`s, best first, and counts of what was considered.
A pattern (`fsdp=X,sp=Y`) is derived a few times, and its steps are priced on all its meshes at
once (`costs.sweep`). That ranking only decides whom to look at: each candidate that is reported
is derived again for its own mesh, by `training_step`, and must fit.

The space: the patterns of `PATTERNS` (for models with experts also those with `ep`), every way
to share out the physical dims of the slice among their axes, in either nesting order.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import cast

import numpy as np
import numpy.typing as npt

from rooflight.algebra import Step, Tensor
from rooflight.costs.roofline import memory_bytes_per_s
from rooflight.costs.sweep import MeshSweep, divides, every_mesh, sweep_step
from rooflight.dtypes import Dtype
from rooflight.errors import PlacementError, ShardingError
from rooflight.graph import Graph, dim_sizes
from rooflight.graph.layout import Layout, parse_layout
from rooflight.plan.algorithm import Line, derive_algorithm, pad_routed
from rooflight.plan.memory import Memory
from rooflight.plan.step_time import Overlap, StepTime, layer_runs, spent, training_step
from rooflight.specs.mesh import Mesh
from rooflight.specs.slice import Slice

PATTERNS = (
    "fsdp=X",
    "fsdp=X,tp=Y",
    "fsdp=X,sp=Y",
    "fsdp=X,cp=Y",
    "dp=Z,fsdp=X",
    "dp=Z,fsdp=X,sp=Y",
)
EXPERT_PATTERNS = (
    "fsdp=X,ep=X",
    "fsdp=X,sp=Y,ep=X",
    "fsdp=X,sp=Y,ep=Y",
    "dp=Z,fsdp=X,ep=X",
)
_SAMPLES = 6  # meshes on which a pattern is derived; where the choice of a strategy flips
_SPARE = 3  # as many candidates are derived exactly for each that is reported

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Candidate:
    """One layout on one mesh with its exact time; how it fits, once that is settled."""

    layout: Layout
    mesh: Mesh
    time: StepTime
    remat: str = ""
    memory: Memory | None = None


Settle = Callable[[Candidate], Candidate | None]


@dataclass(frozen=True, slots=True)
class Search:
    """The best candidates, and how many layouts were named, divide, and were looked at closely."""

    candidates: tuple[Candidate, ...]
    num_named: int
    num_dividing: int
    num_derived: int
    num_unfit: int


@dataclass(frozen=True, slots=True)
class Question:
    """What is to be trained on what."""

    graph: Graph
    on: Slice
    batch: int  # sequences
    seq: int
    dtype: Dtype
    overlap: Overlap = "sum"

    @property
    def dims(self) -> dict[str, int]:
        """Sizes for the sweep: routed tokens are padded for any mesh of the slice."""
        sizes = dim_sizes(self.graph, batch=self.batch, seq=self.seq)
        return pad_routed(sizes, self.on.num_chips)


@dataclass(frozen=True, slots=True)
class _Row:
    """One mesh of a sweep: its time, and the collectives it hides, which settle ties."""

    seconds: float
    hidden_s: float
    layout: Layout
    meshes: MeshSweep
    index: int


def search_training(
    question: Question, *, count: int = 8, settle: Settle = lambda candidate: candidate
) -> Search:
    """Ranks every layout and returns the `count` fastest.

    `settle` sees each candidate that was derived exactly and may change it (recompute to save
    memory) or reject it (it does not fit).
    """
    rows: list[_Row] = []
    named = 0
    for layout, meshes in space(question):
        named += meshes.count
        seconds, hidden = sweep_layout(question, layout, meshes)
        rows += [
            _Row(float(seconds[i]), float(hidden[i]), layout, meshes, int(i))
            for i in np.flatnonzero(seconds < np.inf)
        ]
    rows.sort(key=lambda row: (_tied(row.seconds), row.hidden_s))
    return _exact(question, rows, named, count, settle)


def _tied(seconds: float) -> float:
    """Times within a thousandth of each other count as equal."""
    return round(seconds, 3 - math.ceil(math.log10(seconds)))


def _exact(
    question: Question,
    rows: Sequence[_Row],
    named: int,
    count: int,
    settle: Settle,
) -> Search:
    """Derives the ranked layouts one by one until enough of them fit."""
    found: dict[tuple[str, str], Candidate] = {}
    derived = unfit = 0
    for row in rows:
        mesh = row.meshes.mesh(row.index)
        key = (row.layout.text, _shape(mesh))
        if key in found:
            continue
        derived += 1
        candidate = exact_candidate(question, row.layout, mesh)
        settled = settle(candidate) if candidate else None
        if settled is None:
            unfit += candidate is not None
            continue
        found[key] = settled
        if len(found) == _SPARE * count:
            break
    best = sorted(found.values(), key=lambda c: _order(question, c))[:count]
    return Search(tuple(best), named, len(rows), derived, unfit)


def _shape(mesh: Mesh) -> str:
    """Layouts that differ only in where their axes lie count once, at the best place."""
    return ",".join(f"{a}={n}" for a, n in sorted(mesh.axes.items()))


def _seconds(question: Question, candidate: Candidate) -> float:
    return candidate.time.expected_s(question.overlap)


def _order(question: Question, candidate: Candidate) -> tuple[float, float, int]:
    """Time, then the time of the collectives it hides, then the simpler layout."""
    hidden_s = candidate.time.collectives_s("sum")
    return _tied(_seconds(question, candidate)), hidden_s, len(candidate.mesh.axes)


def exact_candidate(question: Question, layout: Layout, mesh: Mesh) -> Candidate | None:
    q = question
    try:
        time = training_step(q.graph, layout, mesh=mesh, batch=q.batch, seq=q.seq, dtype=q.dtype)
    except (ShardingError, PlacementError):
        return None
    return Candidate(layout, mesh, time)


def space(question: Question) -> Iterator[tuple[Layout, MeshSweep]]:
    """Every pattern with every nesting order of its axes, no axis of one chip."""
    routed = any(op.kind == "route" for op in question.graph.ops)
    for text in (*PATTERNS, *(EXPERT_PATTERNS if routed else ())):
        layout = parse_layout(text)
        for order in permutations(_axes(layout)):
            meshes = every_mesh(order, question.on)
            used = np.all([meshes.ways(a) > 1 for a in order], axis=0)
            if used.any():
                yield layout, meshes.only(used)


def _axes(layout: Layout) -> tuple[str, ...]:
    rules = (layout.weight, layout.stream, layout.inner)
    return tuple(sorted({a for rule in rules for axes in rule.values() for a in axes}))


def sweep_layout(question: Question, layout: Layout, meshes: MeshSweep) -> tuple[Floats, Floats]:
    """Expected seconds of a step on every mesh, and of its collectives alone.

    Infinite where the layout does not divide. Derived on a few meshes that differ most; on each
    mesh the cheapest of those derivations counts.
    """
    best, hidden = np.full(meshes.count, np.inf), np.full(meshes.count, np.inf)
    seen: set[tuple[str, ...]] = set()
    for index in _samples(meshes, _may_divide(question, layout, meshes)):
        lines = _lines(question, layout, meshes.mesh(index))
        steps = tuple(str(line.step) for line, _ in lines)
        if lines and steps not in seen:
            seen.add(steps)
            seconds, queued = _price(question, lines, meshes)
            better = (seconds < best) | ((seconds == best) & (queued < hidden))
            best, hidden = np.where(better, seconds, best), np.where(better, queued, hidden)
    return best, hidden


def _may_divide(question: Question, layout: Layout, meshes: MeshSweep) -> npt.NDArray[np.bool_]:
    """Where the weights and the stream divide: a quick look before the derivation's own."""
    x = layout.of_activation(Tensor("x", ("B", "T", "D"), ((), (), ())))
    tensors = [x, *(layout.of_weight(p.tensor) for p in question.graph.params)]
    steps = [Step("slice", (t,), t) for t in tensors]
    return divides(steps, meshes, dims=question.dims)


def _samples(meshes: MeshSweep, chosen: npt.NDArray[np.bool_]) -> list[int]:
    """Some of the chosen meshes, from the smallest first axis to the largest."""
    first = next(iter(meshes.sizes))
    order = [int(i) for i in np.argsort(meshes.ways(first), kind="stable") if chosen[i]]
    picks = np.linspace(0, len(order) - 1, num=min(_SAMPLES, len(order))).astype(int)
    return [order[i] for i in picks]


def _lines(question: Question, layout: Layout, mesh: Mesh) -> list[tuple[Line, int]]:
    """The lines of a whole step with their counts; none if the layout does not divide here."""
    lines: list[tuple[Line, int]] = []
    for ops, count in layer_runs(question.graph):
        try:
            layer = derive_algorithm(
                question.graph, ops, layout, mesh=mesh, dims=question.dims, dtype=question.dtype
            )
        except ShardingError:
            return []
        lines += [(line, count) for line in spent(layer)]
    return lines


def _price(
    question: Question, lines: Sequence[tuple[Line, int]], meshes: MeshSweep
) -> tuple[Floats, Floats]:
    products = np.zeros(meshes.count)
    axes: dict[str, Floats] = {}
    for line, count in lines:
        if line.price.op:
            products = products + count * _product_seconds(question, line, meshes)
        else:
            where = "+".join(sorted(line.step.axes))
            seconds = sweep_step(line.step, meshes, dims=question.dims, dtype=question.dtype)
            axes[where] = axes.get(where, np.zeros(meshes.count)) + count * seconds
    queued = sum(axes.values(), np.zeros(meshes.count))
    beside = np.max(list(axes.values()), axis=0) if axes else queued
    collectives = queued if question.overlap == "sum" else beside
    whole = divides([line.step for line, _ in lines], meshes, dims=question.dims)
    return np.where(whole, np.maximum(products, collectives), np.inf), queued


def _product_seconds(question: Question, line: Line, meshes: MeshSweep) -> Floats:
    """As `algorithm` prices a product: masked pairs and scores left out."""
    chip, dims = meshes.slice.chip, question.dims
    ways = {a: meshes.ways(a) for a in meshes.sizes}
    dtype = question.dtype
    sizes = cast(Mapping[str, int], ways)  # `Step.elements` takes arrays of sizes as well
    flops = 2 * np.asarray(line.step.elements(dims, sizes), np.float64)
    rate = chip.peak_flops(chip.matmul_dtype(dtype.name))
    stored = [t for t in (*line.step.inputs, line.step.output) if not {"T", "S"} <= set(t.dims)]
    moved = sum(math.prod(dims[d] for d in t.dims) / _split(t.sharded_over, ways) for t in stored)
    hbm_s = moved * dtype.bits_per_element / 8 / memory_bytes_per_s(chip)
    return np.maximum(flops * line.visible / rate, hbm_s)


def _split(axes: Sequence[str], ways: Mapping[str, npt.NDArray[np.int64]]) -> Floats:
    result = np.ones(len(next(iter(ways.values()))))
    for axis in axes:
        result = result * ways[axis]
    return result

"""The space of the search: patterns of schemes, and every mesh on which a pattern may lie.

In: a graph, a slice. Out: patterns (`Layout`s), each with its `Meshes`. A pattern is a choice of

    data        fsdp=X | dp=Z | dp=Z,fsdp=X
    model       nothing | sp=Y | cp=Y | ulysses=Y | cp=W,sp=Y (not beside two data axes)
                | tp=Y (beside one data axis and nothing else: it moves the bytes of sp)
    experts     nothing | ep over the inner data axis | ep over the axis of sp
    pipeline    nothing | pp=P

and lies on every way to share out the physical dims of the slice among its axes, in every nesting
order of those that share a dim. Left out, with reasons: an axis of one chip (another pattern
has it); a pipeline inside another axis (it sends least, so it goes outermost); axes other than
data and pipeline between slices (DCN is slower than the torus by an order of magnitude); behind
switches, orders in which an axis skips part of a node (ranks are counted node by node).
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, permutations, product
from typing import Any

import numpy as np
import numpy.typing as npt

from rooflight.algebra import Axes
from rooflight.costs.sweep import MeshSweep, Rate, collective_rate, every_mesh, shift_rate
from rooflight.graph import Graph
from rooflight.graph.layout import Layout, parse_layout
from rooflight.specs.mesh import Mesh
from rooflight.specs.slice import Slice, SwitchDim

_DATA = ("fsdp=X", "dp=Z", "dp=Z,fsdp=X")
_MODEL = ("", "sp=Y", "tp=Y", "cp=Y", "ulysses=Y", "cp=W,sp=Y")
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]


def patterns(graph: Graph) -> Iterator[Layout]:
    """Every pattern, those without a pipeline first, then those with fewer schemes."""
    routed = any(op.kind == "route" for op in graph.ops)
    texts = [
        ",".join(filter(None, parts))
        for parts in product(_DATA, _MODEL, ("", *(("ep",) if routed else ())), ("", "pp=P"))
        if not _is_left_out(*parts)
    ]
    written = [w for text in texts for w in _experts(text)]
    yield from map(parse_layout, sorted(written, key=lambda t: ("pp=" in t, t.count("="))))


def _is_left_out(data: str, model: str, experts: str, pipeline: str) -> bool:
    """Four axes that split tensors; tp where sp, which moves the same bytes, stands as well."""
    four = data.count("=") + model.count("=") > 3
    return four or (model == "tp=Y" and bool(experts or pipeline or data.count("=") > 1))


def _experts(text: str) -> Iterator[str]:
    """Writes out the axes that experts may lie on."""
    if "ep" not in text.split(","):
        yield text
        return
    for axis in ("X" if "fsdp" in text else "Z", *("Y" if "sp=Y" in text else "")):
        yield text.replace("ep", f"ep={axis}", 1) if ",ep" in text else text


def data_axes(layout: Layout) -> tuple[str, ...]:
    return tuple(layout.stream.get("B", ()))


@dataclass(frozen=True, slots=True)
class Meshes:
    """The meshes of one pattern: one sweep for every nesting order of its axes.

    `rows` are some of them. Sizes and rates are worked out for all, once, and parts read them.
    """

    layout: Layout
    sweeps: tuple[MeshSweep, ...]
    rows: Ints | None = None  # None is all
    _known: dict[object, Any] = field(default_factory=dict[object, Any], repr=False, compare=False)

    @property
    def count(self) -> int:
        return sum(s.count for s in self.sweeps) if self.rows is None else len(self.rows)

    @property
    def slice(self) -> Slice:
        return self.sweeps[0].slice

    def only(self, chosen: Bools) -> "Meshes":
        """Those at which `chosen` is true."""
        rows = np.flatnonzero(chosen)
        return replace(self, rows=rows if self.rows is None else self.rows[rows])

    def ways(self, axis: str) -> Ints:
        key = "ways", axis
        if key not in self._known:
            self._known[key] = np.concatenate([s.ways(axis) for s in self.sweeps])
        return self._taken(self._known[key])

    def num_stages(self) -> Ints:
        one = np.ones(self.count, np.int64)
        return math.prod((self.ways(a) for a in self.layout.stages), start=one)

    def shapes(self) -> tuple[Ints, Ints, Ints]:
        """The distinct pairs of data shards and stages, as two arrays, and which each mesh has."""
        if "shapes" not in self._known:
            whole = replace(self, rows=None)
            one = np.ones(whole.count, np.int64)
            data = math.prod((whole.ways(a) for a in data_axes(self.layout)), start=one)
            pairs = np.stack([data, whole.num_stages()])
            distinct, of = np.unique(pairs, axis=1, return_inverse=True)
            self._known["shapes"] = distinct[0], distinct[1], of.reshape(-1)
        data, stages, of = self._known["shapes"]
        return data, stages, self._taken(of)

    def rate(self, op: str, axes: Axes) -> Rate:
        """What a collective costs on each of them."""
        return self._rate((op, frozenset(axes)), lambda sweep: collective_rate(op, axes, sweep))

    def shift(self) -> Rate:
        """From one pipeline stage to the next."""
        return self._rate("shift", lambda sweep: shift_rate(self.layout.stages, sweep))

    def mesh(self, index: int) -> Mesh:
        if self.rows is not None:
            index = int(self.rows[index])
        for sweep in self.sweeps:
            if index < sweep.count:
                return sweep.mesh(index)
            index -= sweep.count
        raise IndexError(index)

    def _rate(self, key: object, find: Callable[[MeshSweep], Rate]) -> Rate:
        if key not in self._known:
            rates = [find(sweep) for sweep in self.sweeps]
            per_byte = np.concatenate([r.seconds_per_byte for r in rates])
            self._known[key] = Rate(per_byte, np.concatenate([r.latency_s for r in rates]))
        whole: Rate = self._known[key]
        if self.rows is None:
            return whole
        return Rate(whole.seconds_per_byte[self.rows], whole.latency_s[self.rows])

    def _taken(self, whole: Ints) -> Ints:
        return whole if self.rows is None else whole[self.rows]


Keep = Callable[[MeshSweep], Bools]


def every_placement(layout: Layout, on: Slice, keep: Keep | None = None) -> Meshes:
    """All meshes of a pattern, each once; `keep` sees them before their axes are nested."""
    split = tuple(sorted(layout.split_over))
    table = every_mesh((*layout.stages, *split), on)
    table = table.only(_allowed(table, layout))
    table = table.only(keep(table)) if keep else table
    sweeps: list[MeshSweep] = []
    for order in permutations(split):
        names = (*layout.stages, *order)
        chosen = _is_first(table, split, order) & _in_rank_order(table, names)
        if chosen.any():
            sweeps.append(MeshSweep(on, {a: table.sizes[a] for a in names}).only(chosen))
    return Meshes(layout, tuple(sweeps))


def _allowed(table: MeshSweep, layout: Layout) -> Bools:
    """No axis of one chip, unless there is but one; only data and pipeline between slices."""
    result = np.ones(table.count, np.bool_)
    between = [d.name for d in table.slice.dims if isinstance(d, SwitchDim) and d.name == "dcn"]
    for axis, parts in table.sizes.items():
        if table.slice.num_chips > 1:
            result &= table.ways(axis) > 1
        if axis not in (*data_axes(layout), *layout.stages):
            for dim in between:
                if dim in parts:
                    result &= parts[dim] == 1
    return result


def _is_first(table: MeshSweep, split: Sequence[str], order: Sequence[str]) -> Bools:
    """Whether no earlier order is the same mesh: axes that share no physical dim may swap."""
    rank = {axis: i for i, axis in enumerate(split)}
    result = np.ones(table.count, np.bool_)
    for j, later in enumerate(order):
        swaps = np.ones(table.count, np.bool_)
        for earlier in reversed(order[:j]):
            swaps = swaps & ~_share(table, earlier, later)
            if rank[later] < rank[earlier]:
                result &= ~swaps
    return result


def _in_rank_order(table: MeshSweep, order: Sequence[str]) -> Bools:
    """Whether inner axes fill the inner tiers of a switched network first, as ranks count."""
    tiers = [d.name for d in table.slice.dims if isinstance(d, SwitchDim) and d.size > 1]
    result = np.ones(table.count, np.bool_)
    for outer, inner in combinations(order, 2):
        for above, below in combinations(tiers, 2):
            result &= (table.sizes[inner][above] == 1) | (table.sizes[outer][below] == 1)
    return result


def _share(table: MeshSweep, one: str, other: str) -> Bools:
    """Whether two axes have parts of one physical dim."""
    parts = table.sizes[one].items()
    both = [(size > 1) & (table.sizes[other][dim] > 1) for dim, size in parts]
    return np.logical_or.reduce(both)


def microbatch_counts(batch: int) -> tuple[int, ...]:
    """Every number of microbatches that cuts a batch evenly.

    >>> microbatch_counts(12)
    (1, 2, 3, 4, 6, 12)
    """
    low = [n for n in range(1, math.isqrt(batch) + 1) if batch % n == 0]
    return tuple(sorted({*low, *(batch // n for n in low)}))

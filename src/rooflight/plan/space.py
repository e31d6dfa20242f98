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
from dataclasses import dataclass
from itertools import combinations, permutations, product

import numpy as np
import numpy.typing as npt

from rooflight.costs.sweep import MeshSweep, every_mesh
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
    """The meshes of one pattern: one sweep for every nesting order of its axes."""

    layout: Layout
    sweeps: tuple[MeshSweep, ...]

    @property
    def count(self) -> int:
        return sum(s.count for s in self.sweeps)

    def ways(self, axis: str) -> Ints:
        return np.concatenate([s.ways(axis) for s in self.sweeps])

    def num_stages(self) -> Ints:
        one = np.ones(self.count, np.int64)
        return math.prod((self.ways(a) for a in self.layout.stages), start=one)

    def mesh(self, index: int) -> Mesh:
        for sweep in self.sweeps:
            if index < sweep.count:
                return sweep.mesh(index)
            index -= sweep.count
        raise IndexError(index)


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

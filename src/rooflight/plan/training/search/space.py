"""The space of the search: templates of schemes, and every mesh on which a template may lie.

In: a graph, a slice. Out: templates (`Layout`s), each with its `Meshes`. A template is a choice of

    data        fsdp=X | dp=Z | dp=Z,fsdp=X
    model       nothing | sp=Y | cp=Y | ulysses=Y | cp=W,sp=Y (not beside two data axes)
                | tp=Y (beside one data axis and nothing else: it moves the bytes of sp)
                | qtp=Y for sp=Y and tp=Y in models of one kv head
    experts     nothing | ep over the inner data axis | ep over the axis of sp
    pipeline    nothing | pp=P

and lies on every way to share out the physical dims of the slice among its axes, in every nesting
order of those that share a dim. Left out, with reasons: an axis of one chip (another template
has it); a pipeline inside another axis (it sends least, so it goes outermost); axes other than
data and pipeline between slices (DCN is slower than the torus by an order of magnitude); behind
switches, orders in which an axis skips part of a node (ranks are counted node by node).
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, permutations, product
from typing import Any, TypeVar

import numpy as np

from rooflight.algebra.notation import Axes
from rooflight.costs.mesh_sweep import (
    Bools,
    Floats,
    Ints,
    MeshSweep,
    every_degree,
    every_mesh,
    ranked_meshes,
)
from rooflight.costs.rates import TierRates, tier_rates
from rooflight.hardware.mesh import FAR, Mesh
from rooflight.hardware.slice import Slice, SwitchDim
from rooflight.models.graph.ops import Graph
from rooflight.models.layout.rules import Layout, parse_layout, scheme_axes, with_mode
from rooflight.plan.training.forecast.evidence import scheme_name, tier_name
from rooflight.plan.training.memory.framework import FRAMEWORKS, Framework

_Column = TypeVar("_Column", Ints, Bools)
LARGEST_CODE = 2**62  # a row of choices is one number
_OUTER = "PRZXEWCY"  # of axes that could be nested either way: stages outside, tensors inside


def templates(graph: Graph, framework: Framework = FRAMEWORKS["rooflight"]) -> Iterator[Layout]:
    """Every template, those without a pipeline first, then those with fewer schemes."""
    routed = any(op.kind == "route" for op in graph.ops)
    texts = [
        ",".join(filter(None, (text, pipeline)))
        for data, model, pipeline in product(framework.data, _model(graph, framework), ("", "pp=P"))
        if not _is_left_out(data, model, pipeline)
        for is_plain in (framework.plain_fsdp and "fsdp" in data,)
        if not (is_plain and (pipeline or "cp" in model))
        for text in (",".join(filter(None, (data, model))),)
        for text in (text, *(_experts(text, framework) if routed and not is_plain else ()))
        if text or pipeline
    ]
    unique = sorted(dict.fromkeys(texts), key=lambda t: ("pp=" in t, t.count("=")))
    yield from map(parse_layout, unique)


def _model(graph: Graph, framework: Framework) -> tuple[str, ...]:
    """The framework's; what one kv head cannot be split by is split by its queries, if it may."""
    if not framework.splits_queries or graph.sizes.get("K") != 1:
        return framework.model
    split = (re.sub(r"\b[st]p=", "qtp=", m) for m in framework.model if "ulysses" not in m)
    return tuple(dict.fromkeys(split))


def _is_left_out(data: str, model: str, pipeline: str) -> bool:
    """Four axes that split tensors; tp where sp, which moves the same bytes, stands as well."""
    four = data.count("=") + model.count("=") > 3
    return four or (model == "tp=Y" and bool(pipeline or data.count("=") > 1))


def _experts(text: str, framework: Framework) -> Iterator[str]:
    """A template with its experts: over its inner data axis, or over that of tensors.

    Folded, they lie over all of the sequences' axis or a part of it (X, or E), and over any of the
    other axes.
    """
    parts = dict(part.split("=") for part in text.split(",") if part)
    inner = parts.get("fsdp") or parts.get("dp", "")
    if not framework.folds_experts:
        if "tp" not in parts:
            yield from (f"{text},ep={axis}" for axis in (inner, parts.get("sp")) if axis)
        return
    part = "E" if "X" in text else "X"
    split = text.replace(f"dp={inner}", f"dp={inner}{part}")
    others = [parts[name] for name in ("cp", "sp") if name in parts]
    for chosen in (c for n in range(len(others) + 1) for c in combinations(others, n)):
        rest = "".join(chosen)
        if inner:
            yield from (f"{text},ep={inner}{rest}", f"{split},ep={part}{rest}")
        if rest:
            yield f"{text},ep={rest}"


def in_modes(layout: Layout, framework: Framework = FRAMEWORKS["rooflight"]) -> Iterator[Layout]:
    """A layout whose schemes talk plainly, with one of them in each mode that a framework has.

    They split what it splits, so a search ranks the plain form and prices these of the best.

    >>> [layout.text for layout in in_modes(parse_layout("fsdp=X,cp=Y"))]
    ['fsdp=X,cp=Y:ring']
    """
    for scheme, mode in () if layout.modes else framework.modes:
        if scheme in scheme_axes(layout):
            yield with_mode(layout, scheme, mode)


def data_axes(layout: Layout) -> tuple[str, ...]:
    return tuple(layout.stream.get("B", ()))


@dataclass(frozen=True, slots=True)
class Meshes:
    """The meshes of one template, in every nesting order of its axes.

    `rows` are some of them. Sizes and rates are worked out for all, once, and parts read them.
    """

    layout: Layout
    sweep: MeshSweep
    rows: Ints | None = None  # None is all
    _known: dict[object, Any] = field(default_factory=dict[object, Any], repr=False, compare=False)

    @property
    def count(self) -> int:
        return self.sweep.count if self.rows is None else len(self.rows)

    @property
    def slice(self) -> Slice:
        return self.sweep.slice

    def only(self, chosen: Bools) -> "Meshes":
        """Those at which `chosen` is true."""
        rows = np.flatnonzero(chosen)
        return replace(self, rows=rows if self.rows is None else self.rows[rows])

    def ways(self, axis: str) -> Ints:
        key = "ways", axis
        if key not in self._known:
            self._known[key] = self.sweep.ways(axis)
        return self._taken(self._known[key])

    def times(self) -> Ints:
        """How many meshes each of them stands for."""
        if "times" not in self._known:
            self._known["times"] = self.sweep.swaps()[1]
        return self._taken(self._known["times"])

    def alone(self, which: Ints) -> "Meshes":
        """Some of them, for which nothing is known yet."""
        return Meshes(self.layout, self.sweep.at(self._taken(np.arange(self.sweep.count))[which]))

    def rates(self, op: str, axes: Axes, copies: int = 1) -> TierRates:
        """What a collective costs on each of them, or a shift from one stage to the next."""
        op = "all_gather" if op == "reduce_scatter" else op  # the same bytes, the other way
        key = op, frozenset(axes), copies
        if key not in self._known:
            self._known[key] = tier_rates(op, axes, self.sweep, copies=copies)
        whole: TierRates = self._known[key]
        return whole if self.rows is None else whole.at(self.rows)

    def reaches_beyond(self, seen: frozenset[str]) -> Bools:
        """Where some scheme goes further than in any measured run."""
        key = "beyond", seen
        if key not in self._known:
            self._known[key] = _beyond(self.sweep, self.layout, seen)
        return self._taken(self._known[key])

    def goes_far(self, scheme: str) -> Bools:
        """Where a scheme leaves its node or torus."""
        return self._taken(_reaches(self.sweep, self.layout, scheme)[1])

    def lies_on(self, scheme: str, sizes: Mapping[str, int]) -> Bools:
        """Where a scheme has exactly these parts of the physical dims."""
        axes = scheme_axes(self.layout)[scheme]
        return self._taken(_lies_on(self.sweep, axes, sizes))

    def mesh(self, index: int) -> Mesh:
        if self.rows is not None:
            index = int(self.rows[index])
        return _nested(self.sweep, index) if self.slice.chip.switched else self.sweep.mesh(index)

    def _taken(self, whole: _Column) -> _Column:
        return whole if self.rows is None else whole[self.rows]


def first_alike(columns: Iterable[Ints | Floats]) -> tuple[Ints, Ints]:
    """Where each distinct row of some columns is first, and which of these every row is."""
    code, radix = np.zeros(1, np.int64), 1
    for column in columns:
        distinct, which = np.unique(column, return_inverse=True)
        code, radix = code + radix * which, radix * len(distinct)
    assert radix < LARGEST_CODE
    _, first, of = np.unique(code, return_index=True, return_inverse=True)
    return first, of


def _beyond(sweep: MeshSweep, layout: Layout, seen: frozenset[str]) -> Bools:
    """`evidence.unseen_of` of every mesh of a sweep."""
    result = np.zeros(sweep.count, np.bool_)
    for scheme in scheme_axes(layout):
        near, far = _reaches(sweep, layout, scheme)
        for where, of in ((far, FAR[:1]), (near & ~far, ())):
            if f"{scheme_name(scheme)}@{tier_name(of, sweep.slice)}" not in seen:
                result |= where
    return result


def _reaches(sweep: MeshSweep, layout: Layout, scheme: str) -> tuple[Bools, Bools]:
    """Whether a scheme has parts of near tiers, and of far ones."""
    one, none = np.ones(1, np.int64), np.zeros(sweep.count, np.bool_)
    near, far = none.copy(), none.copy()
    for dim in (d.name for d in sweep.slice.dims):
        for axis in scheme_axes(layout)[scheme]:
            used = sweep.sizes[axis].get(dim, one) > 1
            near, far = (near, far | used) if dim in FAR else (near | used, far)
    return near, far


def _lies_on(sweep: MeshSweep, axes: Axes, sizes: Mapping[str, int]) -> Bools:
    """All of a sweep whose axes are not nested yet: their dim has no name."""
    result, one = np.ones(sweep.count, np.bool_), np.ones(1, np.int64)
    for dim in {*sizes, *(d for axis in axes for d in sweep.sizes[axis])} - {""}:
        if all("" not in sweep.sizes[axis] for axis in axes):
            found = math.prod((sweep.sizes[axis].get(dim, one) for axis in axes), start=one)
            result &= found == sizes.get(dim, 1)
    return result


Keep = Callable[[MeshSweep], Bools]


def every_placement(layout: Layout, on: Slice, keep: Keep | None = None) -> Meshes:
    """All meshes of a template, each once; `keep` sees them before their axes are nested."""
    split = tuple(sorted(layout.split_over))
    if on.chip.switched and on.num_chips > 1:
        return Meshes(layout, _by_rank(layout, split, on, keep))
    table = every_mesh((*layout.stages, *split), on)
    table = table.only(_allowed(table, layout))
    if keep and table.count:
        table = table.only(keep(table))
    orders = [
        table.only(_is_first(table, split, order)).nested((*layout.stages, *order))
        for order in permutations(split)
    ]
    return Meshes(layout, MeshSweep.joined(orders))


def _by_rank(layout: Layout, split: Sequence[str], on: Slice, keep: Keep | None) -> MeshSweep:
    """Behind switches: every order of ranks, inner axes filling nodes first, then leaves.

    Orders that put the same parts of the same axes on each tier are one mesh. Only the parts
    matter to a price, so all are in one sweep, and `Meshes.mesh` nests the axes of one.
    """
    names = (*layout.stages, *split)
    degrees = every_degree(names, on.num_chips)
    sizes = MeshSweep(on, {axis: {"": degrees[:, i]} for i, axis in enumerate(names)})
    whole = np.flatnonzero((degrees > 1).all(axis=1))
    if keep and len(whole):
        whole = whole[keep(sizes.at(whole))]
    tables = [ranked_meshes(order, on, degrees[whole], names) for order in permutations(names)]
    table = MeshSweep.joined(tables)
    first, _ = first_alike([part for parts in table.sizes.values() for part in parts.values()])
    table = table.at(np.sort(first))
    return table.only(_allowed(table, layout))


def _nested(sweep: MeshSweep, index: int) -> Mesh:
    """One mesh of a sweep by ranks, its axes nested as they fill the tiers."""
    tiers = [d.name for d in sweep.slice.dims if d.name in next(iter(sweep.sizes.values()))]

    def reach(axis: str) -> tuple[int, int, int]:
        """Innermost tier, outermost tier: who begins further out is outside."""
        used = [i for i, tier in enumerate(tiers) if sweep.sizes[axis][tier][index] > 1] or [0]
        return max(used), min(used), _OUTER.find(axis)

    one = np.array([index])
    order = sorted(sweep.sizes, key=reach)
    return MeshSweep(sweep.slice, {a: sweep.at(one).sizes[a] for a in order}).mesh(0)


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

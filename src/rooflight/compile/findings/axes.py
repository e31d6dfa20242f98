"""Weights split on the wrong dims of a pair of matmuls, such as those of an MLP.

In: the module that the compiler was given, what it made of it, and the arguments. Out: a finding
where an axis that does not split the rows splits both weights, but not the dim between them, if
the one all-reduce of the other way costs clearly less than what is there now.

    In[B,D] * W[D_Y,F] -> h[B,F], h[B,F] * V[F,D_Y] -> Out[B,D_Y]     all of h crosses the network
    In[B,D] * W[D,F_Y] -> h[B,F_Y], h[B,F_Y] * V[F_Y,D] -> Out[B,D]   only Out does

Also a constraint on h that has the axis on another dim, where weights have it right: they are then
gathered whole, and so is Out.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from rooflight.compile.aot.arguments import Argument, Spec, constraint_spec, spec_text
from rooflight.compile.expected.flow import ELEMENTWISE, Flow, Place
from rooflight.compile.findings.finding import (
    Edit,
    Finding,
    collective_seconds,
    network_seconds,
    unnumbered,
)
from rooflight.compile.hlo.collectives import Collective
from rooflight.compile.hlo.instruction import Instruction
from rooflight.compile.hlo.step import CompiledStep
from rooflight.hardware.mesh import Mesh

_DIMS = re.compile(r"\b([lr])hs_(contracting|batch)_dims=\{([\d,]*)\}")
_SAME_ORDER = ("convert", "copy", "bitcast", "opt-barrier", "get-tuple-element", "parameter")
_LAYER = (*_SAME_ORDER, "dynamic-slice", "slice", "reshape", "call")  # of a stack of layers, too
_ACTIVATION = (*_SAME_ORDER, *ELEMENTWISE, "call", "custom-call")
_CLEARLY = 0.75  # of what it costs now
_MOST = 512


@dataclass(frozen=True, slots=True)
class _ChainedMatmul:
    """A dot with a weight on one side; `dim` of it is, or should be, the one between two."""

    dot: Instruction
    line: str
    weight: Argument
    other: Place
    dim: int

    @property
    def axes(self) -> tuple[str, ...]:
        return (self.weight.spec or ())[self.dim]


@dataclass(frozen=True, slots=True)
class _Pair:
    """The matmuls of two weights, of several and one, and an axis that splits a wrong dim."""

    first: tuple[_ChainedMatmul, ...]
    second: _ChainedMatmul
    axis: str
    lines: frozenset[str]  # of both and of the activation between
    asked: tuple[tuple[str, Spec], ...] = ()  # constraints between, with their lines

    @property
    def wrong(self) -> list[_ChainedMatmul]:
        return [m for m in (*self.first, self.second) if self.axis not in m.axes]

    @property
    def stale(self) -> tuple[str, Spec] | None:
        """The constraint that has the axis on another dim than the one between."""
        others = ((line, spec) for line, spec in self.asked if self.axis in sum(spec[:-1], ()))
        return None if self.wrong else next(others, None)


def find_wrong_axes(
    given: CompiledStep,
    found: CompiledStep,
    arguments: Sequence[Argument],
    mesh: Mesh,
    repeated: Sequence[Finding],
) -> Iterator[tuple[Finding, frozenset[str]]]:
    """One finding for all pairs of the same lines, and the lines; `repeated` work may be theirs."""
    reader = _Reader(given, Flow(given.module), {a.name: a for a in arguments})
    groups: dict[tuple[frozenset[str], str], list[_Pair]] = {}
    data = {axis for a in arguments if a.is_integer and a.spec for axis in a.spec[0]}
    for pair in reader.pairs():
        groups.setdefault((pair.lines, pair.axis), []).append(pair)
        rows = [reader.argument(m.other) for m in pair.first]
        # Also on the dim that is summed over: weights that stay where they are want it so.
        data |= {axis for r in rows if r for axis in r.axes}
        data |= {axis for m in pair.first for axis in reader.row_axes(m.other)}
    for (lines, axis), pairs in groups.items():
        now = [c for c in found.collectives if c.source in lines and not data & {*(c.axes or ())}]
        cost = math.fsum(collective_seconds(c, mesh) or 0.0 for c in now)
        cost += math.fsum(f.seconds or 0.0 for f in repeated if f.where in lines)
        passes = _passes(found, lines)
        left = math.fsum(passes * _left_seconds(pair, given, data, mesh) for pair in pairs)
        if axis in data or left >= _CLEARLY * cost:
            continue
        stale = pairs[0].stale
        if stale is None:
            moved = {
                (unnumbered(m.weight.name), m.weight.spec): _moved(m, axis, data)
                for pair in pairs
                for m in pair.wrong
            }  # of every layer, also where the pair of one was not seen whole
            spec_of = {a.name: moved.get((unnumbered(a.name), a.spec)) for a in arguments}
            edits = (Edit("argument", name, spec) for name, spec in spec_of.items() if spec)
            named = _finding(pairs[0], data, cost - left)
            yield replace(named, count=len(pairs), edits=tuple(edits)), lines
        elif any(_is_whole_again(c, pairs[0], data, mesh) for c in found.collectives):
            yield replace(_stale(stale, pairs[0], cost - left), count=len(pairs)), lines


def _is_whole_again(found: Collective, pair: _Pair, data: set[str], mesh: Mesh) -> bool:
    """Whether what comes out of the second matmul is gathered over the axis of a constraint."""
    rows = math.prod(mesh.axes.get(axis, 1) for axis in data)
    is_over = found.kind == "all_gather" and pair.axis in (found.axes or ())
    return is_over and found.nbytes == pair.second.dot.nbytes // rows


def _stale(asked: tuple[str, Spec], pair: _Pair, seconds: float) -> Finding:
    line, spec = asked
    dims = [tuple(a for a in dim if a != pair.axis) for dim in spec]
    dims[-1] = (*dims[-1], pair.axis)
    weights = ", ".join(m.weight.name for m in (*pair.first, pair.second))
    return Finding(
        "stale_constraint",
        f"this constraint splits another dim over {pair.axis} than the weights around it, so"
        f" {weights} are gathered, and so is what comes out",
        f"constrain it to {spec_text(tuple(dims))}, as {pair.second.weight.name} is split, or"
        " take the constraint out",
        seconds=seconds,
        where=line,
        edits=(Edit("constraint", line, tuple(dims)),),
    )


def _passes(step: CompiledStep, lines: frozenset[str]) -> int:
    """One forward; one backward and one more forward if the step has them."""
    flow = Flow(step.module)
    sites = [step.module.find(w.name) for w in step.work if w.source in lines and w.flops]
    places = [site for site in sites if site]
    again = any("rematted_computation" in value.op_name for _, value in places)
    return 1 + any(flow.is_backward(place) for place in places) + again


def _left_seconds(pair: _Pair, given: CompiledStep, data: set[str], mesh: Mesh) -> float:
    """One sum of the result over all axes that then split the dim between the matmuls."""
    rows = math.prod(mesh.axes.get(axis, 1) for axis in data)
    axes = dict.fromkeys([*(a for a in pair.second.axes if a not in data), pair.axis])
    size = math.prod(mesh.axes.get(axis, 1) for axis in axes)
    if pair.second.weight.dims[pair.second.dim] % size:
        return math.inf
    each = network_seconds("all_reduce", pair.second.dot.nbytes / rows, tuple(axes), mesh)
    runs = given.runs[pair.second.other[0].name].count
    return math.inf if each is None else each * (runs or 1)


def _finding(pair: _Pair, data: set[str], seconds: float) -> Finding:
    specs = [f"{m.weight.name} {spec_text(_moved(m, pair.axis, data))}" for m in pair.wrong]
    return Finding(
        "wrong_axis",
        f"{', '.join(m.weight.name for m in pair.wrong)}: {pair.axis} splits another dim than the"
        f" one between these matmuls, so {pair.first[0].dot.shapes[0]} is made or moved whole",
        f"give {', '.join(specs)}: {pair.second.dot.shapes[0]} alone is then summed over"
        f" {pair.axis}",
        seconds=seconds,
        where=pair.wrong[0].line,
    )


def _moved(matmul: _ChainedMatmul, axis: str, data: set[str]) -> Spec:
    """A spec with an axis on another dim; axes of the rows that were there (FSDP) change places."""
    spec = [tuple(a for a in dim if a != axis) for dim in matmul.weight.spec or ()]
    before = next(at for at, dim in enumerate(matmul.weight.spec or ()) if axis in dim)
    spec[before] += tuple(a for a in matmul.axes if a in data)
    spec[matmul.dim] = (*(a for a in matmul.axes if a not in data), axis)
    return tuple(spec)


@dataclass(frozen=True, slots=True)
class _Reader:
    """Finds the pairs of a module."""

    step: CompiledStep
    flow: Flow
    arguments: Mapping[str, Argument]

    def pairs(self) -> Iterator[_Pair]:
        computations = [self.step.module.computations[name] for name in self.step.runs]
        dots = [(c, i) for c in computations for i in c.instructions if i.opcode == "dot"]
        for place in dots:
            second = self._matmul(place, sums=True)
            narrows = second and second.other[1].nbytes > place[1].nbytes
            if second is None or not narrows or self.flow.is_backward(place):
                continue
            first, lines, asked = self._before(second)
            for axis in second.weight.axes if first else ():
                pair = _Pair(first, second, axis, lines, asked)
                if (pair.wrong or pair.stale) and all(axis in m.weight.axes for m in first):
                    yield pair

    def _before(
        self, second: _ChainedMatmul
    ) -> tuple[tuple[_ChainedMatmul, ...], frozenset[str], tuple[tuple[str, Spec], ...]]:
        """The matmuls that make what the second sums over; the lines of all; constraints."""
        waiting, seen, found = [second.other], {second.other[1].name}, list[_ChainedMatmul]()
        lines, asked = {second.line}, list[tuple[str, Spec]]()
        while waiting and len(seen) < _MOST:
            computation, value = waiting.pop()
            if value.opcode == "dot" and value.shapes == second.other[1].shapes:
                made = self._matmul((computation, value), sums=False)
                found += [made] if made else []
                lines |= {made.line} if made else set()
            elif value.opcode in _ACTIVATION:
                lines.add(self.step.module.source(value))
                if spec := constraint_spec(value):
                    asked.append((self.step.module.source(value), spec))
                before = [p for p in self.flow.made_from((computation, value))]
                waiting += [p for p in before if p[1].name not in seen]
                seen |= {p[1].name for p in before}
        return tuple(sorted(found, key=lambda m: m.dot.line)), frozenset(lines - {""}), (*asked,)

    def _matmul(self, place: Place, *, sums: bool) -> _ChainedMatmul | None:
        """`rows * weight`, both summed over one dim; `dim` is that one or the other, the last."""
        computation, dot = place
        dims = {(side, role): text for side, role, text in _DIMS.findall(dot.attributes)}
        rows, value = computation.inputs(dot)
        weight = self.argument((computation, value))
        summed = dims.get(("r", "contracting"), "")
        is_plain = dims.get(("l", "contracting")) == str(len(rows.shapes[0].dims) - 1)
        if weight is None or summed not in ("0", "1") or not is_plain or ("l", "batch") in dims:
            return None
        if len(value.shapes[0].dims) != 2:
            return None
        dim = len(weight.dims) - 2 + (int(summed) if sums else 1 - int(summed))
        return _ChainedMatmul(dot, self.step.module.source(dot), weight, (computation, rows), dim)

    def row_axes(self, place: Place) -> Iterator[str]:
        """Axes of all but the last dim of the activations that rows were made from, no matmul."""
        waiting, seen = [place], {place[1].name}
        while waiting and len(seen) < _MOST:
            computation, value = waiting.pop()
            name = value.op_name.replace("\\", "")
            if value.opcode == "parameter" and computation.name == self.step.module.entry:
                spec = self.arguments[name].spec if name in self.arguments else None
                yield from (axis for dim in (spec or ())[:-1] for axis in dim)
            elif value.opcode not in ("dot", "gather"):
                before = self.flow.made_from((computation, value))
                waiting += [p for p in before if p[1].name not in seen]
                seen |= {p[1].name for p in before}

    def argument(self, place: Place) -> Argument | None:
        """The argument that an operand is, or is a layer of, its dims in the same order."""
        dims = place[1].shapes[0].dims
        for _ in range(_MOST):
            computation, value = place
            if value.opcode == "parameter" and computation.name == self.step.module.entry:
                found = self.arguments.get(value.op_name.replace("\\", ""))
                return found if found and found.spec and found.dims[-len(dims) :] == dims else None
            before = self.flow.made_from(place)
            if value.opcode not in _LAYER or not before:
                return None
            place = before[0]
        return None

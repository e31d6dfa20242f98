"""Collectives that a program could do without: what the partitioner had to move, and why.

In: a partitioned step, its arguments and the mesh. Out: findings; none of what is asked by name.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from rooflight.compile.aot.arguments import Argument, constraint_helpers, is_constraint, spec_text
from rooflight.compile.expected.flow import (
    SAME_ELEMENTS,
    WORKED,
    Flow,
    Place,
    bits_after,
    bits_before,
    is_summed,
    leak_of,
    other_bytes,
    source_of,
)
from rooflight.compile.findings import finding as costs
from rooflight.compile.findings.finding import Edit, Finding
from rooflight.compile.hlo.collectives import Collective, cut_axes, only_calls, sliced_axes
from rooflight.compile.hlo.instruction import Instruction, Shape
from rooflight.compile.hlo.step import CompiledStep
from rooflight.hardware.mesh import Mesh

_SUMS = ("psum", "psum_invariant", "pbroadcast", "pmax", "pmin", "reduce_scatter", "psum_scatter")
_MOVES = ("all_gather", "all_gather_invariant", "all_to_all", "ragged_all_to_all", "ppermute")
_ASKED = (*_SUMS, *_MOVES)
_MOVED = ("resharded", "cut_again", "batch_gathered")
_APART = "keep what is cut apart on a dim of its own: halves of a split dim lie on other devices"
_GIVE = "give {} the sharding that the matmul on this line wants, or constrain the other operand"
_OUT = "take this constraint out"
_ENOUGH = 4  # times fewer bytes: another way must be clearly better to be advice


def find_surprises(
    step: CompiledStep,
    arguments: list[Argument],
    mesh: Mesh,
    axes: Mapping[str, int],
    results: Sequence[str] = (),
) -> Iterator[Finding]:
    """Every surprise of a step; `axes` are those of the jax mesh, `results` paths in its tree."""
    flow = Flow(step.module)
    by_name = {a.name: a for a in arguments}
    data = [a.spec for a in arguments if a.is_integer and a.spec]
    batch = frozenset(axis for spec in data for axis in spec[0])
    calls, helpers = only_calls(step.module), constraint_helpers(step)
    finder = _Finder(step, flow, by_name, batch, mesh, axes, calls, helpers, results)
    for found in step.collectives:
        yield from finder.of(found)


@dataclass(frozen=True, slots=True)
class _Finder:
    """Looks at one collective after the other; the first rule that holds names it."""

    step: CompiledStep
    flow: Flow
    arguments: Mapping[str, Argument]
    batch: frozenset[str]  # axes that split the first dim of the tokens
    mesh: Mesh
    axes: Mapping[str, int]
    calls: Mapping[str, Place]
    helpers: frozenset[str]  # lines of constraints inside a function that many lines call
    results: Sequence[str]

    def of(self, found: Collective) -> Iterator[Finding]:
        place = self.step.module.find(found.name)
        if place is None or found.op_name.rpartition("/")[2] in _ASKED:
            return
        rules = (
            self._cut_again,
            self._resharded,
            self._added_each_round,
            self._small_matmul,
            self._batch,
            self._stored_whole,
            self._returned_whole,
        )
        named = next((finding for rule in rules if (finding := rule(found, place))), None)
        yield from (finding for finding in (named, self._wide(found, place)) if finding)

    def _finding(
        self,
        kind: str,
        found: Collective,
        words: str,
        fix: str,
        *,
        share: float = 1.0,
        edits: tuple[Edit, ...] = (),
    ) -> Finding:
        seconds = costs.collective_seconds(found, self.mesh)
        place = self.step.module.find(found.name)
        asked = self._constraint(place) if place and kind != "wide" else ""
        if place and not asked and kind in _MOVED:
            asked = self._beside(place)
            line = _file(found.source)
            fix = f"{_OUT}, or give it what {line} wants" if asked else fix
        return Finding(
            kind=kind,
            words=words,
            seconds=None if seconds is None else seconds * share,
            nbytes=None if found.bytes_per_step is None else int(found.bytes_per_step * share),
            where=asked or found.source or (self._made(place) if place else ""),
            fix=fix,
            edits=(Edit("no constraint", asked),) if fix.startswith(_OUT) else edits,
        )

    def _cut_again(self, found: Collective, place: Place) -> Finding | None:
        """Every device gets all of an array and keeps a part."""
        if found.kind != "all_gather":
            return None
        kept = sliced_axes(place, self.axes, self.calls) or self._all_cut(found, place)
        if not kept:
            return None
        return self._finding(
            "cut_again",
            found,
            f"{_array(place)} is gathered over {_over(found)} and cut over {'+'.join(kept)} again",
            f"{_OUT}: what it makes whole is cut over the same axes again"
            if self._constraint(place) and {*kept} >= {*(found.axes or ())}
            else "keep one sharding from where it is made to where it is used: two constraints on"
            " this value disagree",
        )

    def _all_cut(self, found: Collective, place: Place) -> list[str]:
        """Its axes over which every use cuts an argument, after work element by element."""
        uses = self.flow.uses(place, WORKED) if self._argument(place) else []
        cuts = [cut_axes(at, self.axes) for at in uses if at[1].opcode == "dynamic-slice"]
        is_all = cuts and len(cuts) == len(uses)
        return [a for a in found.axes or () if is_all and all(a in cut for cut in cuts)]

    def _resharded(self, found: Collective, place: Place) -> Finding | None:
        """An array moves to another sharding that neither a constraint nor a split weight wants."""
        if found.kind not in ("all_to_all", "permute"):
            return None
        axes, weights = frozenset(found.axes or ()), self._weights_met(place)
        if any(weight.axes & axes for weight in weights):
            return None
        if any(axes & {a for dim in (t.spec or ())[1:] for a in dim} for t in self._tables(place)):
            return None  # rows of a table whose width these axes split
        if self._constraint(place) and not weights:
            return None
        argument = self._argument(place)
        what = argument.name if argument else _array(place)
        return self._finding(
            "resharded",
            found,
            f"{what} is moved to another sharding over {_over(found)} ({_kind(found)})",
            _APART if place[1].op_name.endswith("/split") else _GIVE.format(what),
        )

    def _constraint(self, place: Place) -> str:
        """The line of the constraint that a value goes straight to, "" if it goes to none."""
        for _, user in self.flow.hands_on(place):
            if is_constraint(user):
                return self._line(user)
        return ""

    def _line(self, constraint: Instruction) -> str:
        line = self.step.module.source(constraint)
        return self.step.module.caller(constraint) if line in self.helpers else line

    def _beside(self, place: Place) -> str:
        """The line of the constraint that a value comes from, or goes to after elementwise work."""
        computation, value = place
        while value.operands and (value is place[1] or value.opcode in SAME_ELEMENTS):
            value = computation.inputs(value)[0]
            if is_constraint(value):
                return self._line(value)
        after = (user for _, user in self.flow.hands_on(place, WORKED) if is_constraint(user))
        return next((self._line(user) for user in after), "")

    def _made(self, place: Place) -> str:
        """The line that made the operand of a collective which has none of its own."""
        computation, value = place
        while value.operands and not self.step.module.source(value):
            value = computation.inputs(value)[0]
        return self.step.module.source(value)

    def _weights_met(self, place: Place) -> list[Argument]:
        """Arguments that are the other side of a matmul of a value, gathered or not."""
        found: list[Argument] = []
        for computation, use in self.flow.uses(place):
            for operand in computation.inputs(use) if use.opcode == "dot" else ():
                value = source_of(computation, operand)
                argument = self._argument((computation, value))
                if value is not place[1] and argument:
                    found.append(argument)
        return found

    def _tables(self, place: Place) -> Iterator[Argument]:
        """Arguments that rows were looked up in, or whose gradient rows are added up to."""
        for computation, value in self.flow.computed_from(place):
            if value.opcode == "gather":
                table = self._argument((computation, computation.inputs(value)[0]))
                yield from [table] if table else []
        for _, user in self.flow.uses(place):
            shape = _shape(user) if user.opcode == "scatter" else None
            rows = shape.dims[0] if shape else None
            yield from (
                a for a in self.arguments.values() if a.local_dims(self.axes)[:1] == (rows,)
            )

    def _added_each_round(self, found: Collective, place: Place) -> Finding | None:
        """A sum over devices may pend while rounds are added up: same memory, fewer sums."""
        loop = self.flow.accumulated_in(place) if found.kind == "all_reduce" else None
        trips = self.step.loops[loop.name][0].trips if loop and loop.name in self.step.loops else 1
        if loop is None or not trips or trips < 2:
            return None
        return self._finding(
            "each_round",
            found,
            f"{_array(place)} is summed over {_over(found)} in each of {trips} rounds that are"
            " only added up",
            "add up local gradients in the loop and sum over devices once after it: put the loop"
            f" inside shard_map over {_over(found)}",
            share=1 - 1 / trips,
        )

    def _small_matmul(self, found: Collective, place: Place) -> Finding | None:
        """A weight is moved to fewer numbers than it has."""
        argument = self._argument(place)
        if found.kind != "all_gather" or argument is None or not found.axes:
            return None
        uses = self.flow.uses(place)
        dots = [(c, u) for c, u in uses if u.opcode == "dot"]
        if not dots or len(dots) < len(uses):
            return None
        asked = {self._constraint(dot) for dot in dots}
        size = math.prod(self.axes[a] for a in found.axes)
        moved = sum(other_bytes(c, u, place[1]) + u.nbytes for c, u in dots)
        if found.nbytes <= _ENOUGH * moved * size:
            return None
        named = self._finding(
            "weight_moved",
            found,
            f"{argument.name} is gathered over {_over(found)} for matmuls of fewer bytes than it"
            " has",
            f"store it split over other axes than {_over(found)}, or leave it where it is and move"
            " the activations: constrain them to be whole over these axes",
        )
        line = asked.pop() if len(asked) == 1 else ""
        if not line or line == found.source or any(is_summed(*at, place[1]) for at in dots):
            return named
        fix = f"{_OUT}: it leaves out {_over(found)}, which splits the weight"
        return replace(named, where=line, fix=fix, edits=(Edit("no constraint", line),))

    def _batch(self, found: Collective, place: Place) -> Finding | None:
        """Activations of the whole batch on every device, unless split weights want them there."""
        gathered = self.batch & set(found.axes or ())
        if found.kind != "all_gather" or not gathered or self._argument(place):
            return None
        if self._is_returned(place) or any(w.axes & gathered for w in self._weights_met(place)):
            return None
        tables = (a for a in self.arguments.values() if a.spec and gathered & {*a.spec[0]})
        if found.dtype.startswith(("s", "u")) and not all(t.is_integer for t in tables):
            return None  # ids go to the rows of a table that these axes split
        axes = "+".join(sorted(gathered))
        return self._finding(
            "batch_gathered",
            found,
            f"{_array(place)}, no argument, is gathered over {axes}, which splits the batch",
            f"constrain it with {axes} on its batch dim; a constraint with None there, or a"
            " reshape that joins the batch with another dim, undoes the split",
        )

    def _stored_whole(self, found: Collective, place: Place) -> Finding | None:
        """What a loop computes in parts is gathered in every round, only to be put away."""
        uses = self.flow.uses(place)
        if found.kind != "all_gather" or self._argument(place) or not found.loops:
            return None
        if not uses or any(user.opcode != "dynamic-update-slice" for _, user in uses):
            return None
        return self._finding(
            "stored_whole",
            found,
            f"{_array(place)} is gathered over {_over(found)} in a loop that only stores it",
            "constrain what the loop body returns to the sharding that it is computed in, and move"
            " it once after the loop",
        )

    def _returned_whole(self, found: Collective, place: Place) -> Finding | None:
        """A result is whole over axes that split the argument it will replace."""
        if found.kind not in ("all_gather", "all_reduce") or not found.axes:
            return None
        if self._argument(place) or not self._is_returned(place):
            return None
        result = _shape(self.flow.handed_on(place))
        path = self._path(self.flow.handed_on(place))
        named = [a for name, a in self.arguments.items() if path and name.endswith(path)]
        if result is None:
            return None
        # As it would be if some axes did not split it; perhaps none does: of several collectives
        # that make it whole, this is the last.
        alike = (
            a
            for a in named or self.arguments.values()
            if a.axes >= set(found.axes)
            and a.dtype == result.dtype
            and result.dims in (a.local_dims(self.axes, found.axes), a.dims)
        )
        same = next(alike, None)
        if same is None:
            return None
        return self._finding(
            "returned_whole",
            found,
            f"{result} is returned whole over {_over(found)}, which splits {same.name}"
            f" ({_kind(found)})",
            f"return it as {spec_text(same.spec or ())}: out_shardings of jax.jit, or a constraint",
            share=0.5 if found.kind == "all_reduce" else 1.0,  # a reduce-scatter is left
            edits=(Edit("result", path, same.spec),) if path else (),
        )

    def _path(self, result: Instruction) -> str:
        """Where the program returns a value: `['layers'][0]`; "" if it does not say."""
        root = self.step.module.computations[self.step.module.entry].root
        is_known = result.name in root.operands and len(root.operands) == len(self.results)
        return self.results[root.operands.index(result.name)] if is_known else ""

    def _is_returned(self, place: Place) -> bool:
        entry = self.step.module.computations[self.step.module.entry]
        return all(c is entry and use is entry.root for c, use in self.flow.uses(place))

    def _wide(self, found: Collective, place: Place) -> Finding | None:
        """Bits travel that a cast has just added, or that the next cast drops."""
        shape = _shape(place[1])
        if shape is None or found.dtype != "f32":
            return None
        before = bits_before(place)
        after = bits_after(self.flow, place)
        leak = self._leak(place)
        narrow = min(before, after, 16 if leak else before)
        if narrow >= shape.bits:
            return None
        part = narrow / shape.bits
        small = costs.network_seconds(found.kind, found.nbytes * part, found.axes, self.mesh)
        each = costs.network_seconds(found.kind, found.nbytes, found.axes, self.mesh)
        share = 1 - small / each if small and each else 1 - part
        why = (
            f"and {'was cast up just before' if before < shape.bits else 'is cast down just after'}"
        )
        how = f"cast {'after' if before < shape.bits else 'before'} the {_kind(found)}"
        if leak:
            why = f"only because bf16 became f32 in {_file(self.step.module.source(leak))}"
            how = "cast back to bf16 before the matmul, or what made it f32 (a scale, a table)"
        return self._finding(
            "wide",
            found,
            f"{_array(place)} goes over {_over(found)} in f32 {why} ({_kind(found)})",
            f"{how}: half the bytes travel",
            share=share,
        )

    def _leak(self, place: Place) -> Instruction | None:
        """What made the matmul wide whose result, or whose operand, a collective moves."""
        computation, value = place
        made = source_of(computation, computation.inputs(value)[0]) if value.operands else value
        dots = [(computation, made)] if made.opcode == "dot" else self.flow.uses(place)
        leaks = [leak_of(self.flow, *at) if at[1].opcode == "dot" else None for at in dots]
        return leaks[0][1] if leaks and leaks[0] and all(leaks) else None

    def _argument(self, place: Place) -> Argument | None:
        """The argument that is moved; the collective itself moves one."""
        computation, value = place
        if value.opcode.removesuffix("-start").startswith(("all-", "collective-")):
            value = computation.inputs(value)[0]
        origin = self.flow.argument_of((computation, value))
        return self.arguments.get(origin.op_name.replace("\\", "")) if origin else None


def _file(line: str) -> str:
    return line.rpartition("/")[2] or "a line that is not known"


def _kind(found: Collective) -> str:
    return found.kind.replace("_", "-")


def _over(found: Collective) -> str:
    return "+".join(found.axes or ("unknown axes",))


def _array(place: Place) -> str:
    shape = _shape(place[1])
    return str(shape) if shape else place[1].name


def _shape(value: Instruction) -> Shape | None:
    return value.shapes[0] if value.shapes else None

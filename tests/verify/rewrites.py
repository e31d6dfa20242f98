"""The compiler's rewrites of collectives, from right after partitioning to the schedule.

In: the collectives of both stages. Out: a `Rewriting`: which named transformations turn the one
list into the other. Each says what must come out of what goes in; nothing else explains anything.

    between slices  what crosses slices goes between hosts; a sum over both is done inside each
                    slice, then across (Z x X -> X, then Z)
    combined        several of one kind and group as one of all their bytes
    once            an array gathered again in one round, or a sum of every round, is done once
    unscattered     a reduce-scatter stays an all-reduce, each device keeping its part
    summed          a small gather is a sum of parts in their places, zeros elsewhere
    padded          a scatter of parts that fill no tiles has padded ones, and permutes that bring
                    each device its own: as many, of as many bytes, as `hlo_pieces.shifts` says
    again           one more for want of memory, marked as such by the compiler
    windowed        a gather or scatter of n parts is n - 1 permutes of a part, around a product

What keeps kind, axes, bytes and count may still change its form: a reduce-scatter is written as an
all-reduce fused with the slice of it, and others get a start and a done, or hide in a fusion.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from hlo_origin import origin
from hlo_pieces import Piece, pieces_of, shifts

from rooflight.compile.hlo.collectives import Collective
from rooflight.compile.hlo.groups import MeshAxes
from rooflight.compile.hlo.step import CompiledStep

Name = Literal[
    "as partitioned",
    "fused",
    "asynchronous",
    "between slices",
    "combined",
    "once",
    "unscattered",
    "summed",
    "padded",
    "again",
    "windowed",
]
FORMS: tuple[Name, ...] = ("as partitioned", "fused", "asynchronous")
REWRITES: tuple[Name, ...] = (
    *("between slices", "combined", "once", "unscattered"),
    *("summed", "padded", "again", "windowed"),
)
_AGAIN = re.compile(r"\.remat\d*\b|\.remat_")
_TILE = 512  # bytes that a few scalars take once they are combined and sent between slices
_SMALL = 1 << 16  # bytes up to which a gather may be written as a sum


@dataclass(frozen=True, slots=True, order=True)
class Kind:
    """What two collectives share if either may stand for the other."""

    kind: str
    axes: tuple[str, ...]
    nbytes: int
    is_dcn: bool = False


@dataclass(frozen=True, slots=True)
class Rewrite:
    """So many runs of some collectives became so many of others."""

    name: Name
    before: tuple[tuple[Kind, int], ...]
    after: tuple[tuple[Kind, int], ...]


@dataclass(frozen=True, slots=True)
class Rewriting:
    """All rewrites of a program, and what none of them explains."""

    rewrites: tuple[Rewrite, ...]
    gone: Mapping[Kind, int]  # runs after partitioning that went somewhere unknown
    new: Mapping[Kind, int]  # runs in the schedule that came from nowhere known

    @property
    def unexplained(self) -> int:
        return sum(self.gone.values()) + sum(self.new.values())

    @property
    def counts(self) -> dict[Name, int]:
        """Runs after partitioning by what the compiler made of them; new ones by themselves."""
        found: Counter[Name] = Counter()
        for rewrite in self.rewrites:
            found[rewrite.name] += sum(count for _, count in rewrite.before or rewrite.after)
        return dict(found)


def explain_rewrites(
    partitioned: CompiledStep, scheduled: CompiledStep, axes: MeshAxes
) -> Rewriting:
    """Explains the collectives of the schedule by those right after partitioning."""
    solver = _Solver(_runs(partitioned), _runs(scheduled), axes.sizes)
    solver.between_slices(axes.dcn)
    solver.read(scheduled)
    solver.keep(scheduled.collectives)
    solver.pad()
    solver.again(scheduled.collectives)
    solver.combine()
    solver.merge(_repeats(partitioned))
    solver.hoist(_after_loops(partitioned))
    solver.window()
    return Rewriting(tuple(solver.found), +solver.gone, +solver.new)


def _runs(step: CompiledStep) -> Counter[Kind]:
    """Runs a step of every kind; one in a loop of unknown length counts as none."""
    total: Counter[Kind] = Counter()
    for one in step.collectives:
        total[_kind(one)] += one.count or 0
    return total


def _repeats(step: CompiledStep) -> Counter[Kind]:
    """Runs of gathers whose very operand was gathered before in the same round."""
    seen: set[object] = set()
    spare: Counter[Kind] = Counter()
    for one in step.collectives:
        place = step.module.find(one.name) if one.kind == "all_gather" else None
        if place is None:
            continue
        operand = (one.loops, _kind(one), origin(*place))
        if operand in seen:
            spare[_kind(one)] += one.count or 0
        seen.add(operand)
    return spare


def _after_loops(step: CompiledStep) -> dict[Kind, set[int]]:
    """How many runs of each sum go if it is taken once after its loop, for each of its loops."""
    trips = {name: loop.trips for name, (loop, _) in step.loops.items()}
    fewer: dict[Kind, set[int]] = {}
    for one in step.collectives:
        times = trips.get(one.loops[-1]) if one.loops else None
        if one.kind == "all_reduce" and times and one.count:
            fewer.setdefault(_kind(one), set()).add(one.count - one.count // times)
    return fewer


def _kind(found: Collective) -> Kind:
    axes = tuple(sorted(found.axes or ()))
    return Kind(found.kind, axes, found.nbytes, found.form == "dcn")


@dataclass(slots=True)
class _Solver:
    """Runs that are not explained yet, on both sides."""

    gone: Counter[Kind]
    new: Counter[Kind]
    sizes: Mapping[str, int]
    found: list[Rewrite] = field(default_factory=list[Rewrite])

    def explain(self, name: Name, before: Mapping[Kind, int], after: Mapping[Kind, int]) -> None:
        self.gone.subtract(before)
        self.new.subtract(after)
        self.found.append(Rewrite(name, tuple(before.items()), tuple(after.items())))

    def between_slices(self, dcn: Mapping[str, int]) -> None:
        """All that cross slices, whatever becomes of their parts."""
        for kind, count in list(self.gone.items()):
            across = tuple(a for a in kind.axes if a in dcn)
            inside = tuple(a for a in kind.axes if a not in dcn)
            whole = all(dcn[a] == self.sizes[a] for a in across)
            if not across or not whole or (inside and kind.kind != "all_reduce"):
                continue
            parts = {replace(kind, axes=across, is_dcn=True): count}
            if inside:
                parts[replace(kind, axes=inside)] = count
            del self.gone[kind]
            self.gone.update(parts)
            self.found.append(Rewrite("between slices", ((kind, count),), ()))

    def read(self, scheduled: CompiledStep) -> None:
        """Those whose text says what they are made of: several arrays, or padded ones."""
        for one in scheduled.collectives:
            made = pieces_of(scheduled.module, one) or ()
            if len(made) > 1 or any(p.sent_bytes > p.nbytes for p in made):
                self._made_of(_kind(one), one.count or 0, made)

    def _made_of(self, whole: Kind, count: int, made: Iterable[Piece]) -> None:
        """Explains a collective by its arrays, if each was one, and the permutes are there."""
        taken: Counter[Kind] = Counter()
        after: Counter[Kind] = Counter({whole: count})
        padded: Counter[Kind] = Counter()
        for piece in made:
            source = self._source(whole, piece.nbytes, taken, count)
            if source is None:
                return
            taken[source] += count
            padded[source] += count if piece.sent_bytes > piece.nbytes else 0
            if piece.sent_bytes > piece.tiled_bytes:
                moved = self._permutes(whole.axes, piece.tiled_bytes, piece.sent_bytes)
                after.update({kind: n * count for kind, n in moved.items()})
        if count == 0 or any(self.new[kind] < n for kind, n in after.items()):
            return
        self._converted(whole, taken)
        if +padded:
            self.found.append(Rewrite("padded", tuple((+padded).items()), tuple(after.items())))
        if taken.total() > count:
            self.found.append(Rewrite("combined", tuple(taken.items()), ((whole, count),)))
        self.gone.subtract(taken)
        self.new.subtract(after)

    def _source(
        self, whole: Kind, nbytes: int, taken: Mapping[Kind, int], count: int
    ) -> Kind | None:
        """What an array of a collective was before, if enough runs of it are left."""
        for kind in dict.fromkeys((whole.kind, "reduce_scatter", "all_gather", "all_reduce")):
            source = Kind(kind, whole.axes, nbytes, whole.is_dcn)
            may_be = kind == whole.kind or _may_be_in(source, whole)
            if may_be and self.gone[source] - taken.get(source, 0) >= count:
                return source
        return None

    def _converted(self, whole: Kind, taken: Mapping[Kind, int]) -> None:
        for part, count in taken.items():
            if part.kind != whole.kind:
                name = "summed" if part.kind == "all_gather" else "unscattered"
                self.found.append(Rewrite(name, ((part, count),), ()))

    def keep(self, scheduled: Iterable[Collective]) -> None:
        """Those that are what they were, by the form they have now."""
        for one in scheduled:
            kind = _kind(one)
            count = min(one.count or 0, self.gone[kind])
            if count > 0:
                self.explain(_form(one), {kind: count}, {kind: count})

    def pad(self) -> None:
        """A larger scatter, and the permutes after it."""
        for kind in list(+self.gone):
            for whole in list(+self.new):
                same = (kind.kind, kind.axes) == (whole.kind, whole.axes)
                if kind.kind != "reduce_scatter" or not same or whole.nbytes <= kind.nbytes:
                    continue
                moved = self._permutes(kind.axes, kind.nbytes, whole.nbytes)
                runs = (self.new[permute] // n for permute, n in moved.items())
                count = min(self.gone[kind], self.new[whole], *runs)
                if count > 0 and moved:
                    after = {whole: count} | {k: n * count for k, n in moved.items()}
                    self.explain("padded", {kind: count}, after)

    def _permutes(self, axes: tuple[str, ...], nbytes: int, padded: int) -> Counter[Kind]:
        """Those that follow a scatter of so many bytes that was padded to so many."""
        ways = math.prod(self.sizes[axis] for axis in axes)
        moved = shifts(nbytes // ways, padded // ways, ways)
        return Counter(Kind("permute", axes, size) for size in moved)

    def _ways(self, kind: Kind) -> int:
        return math.prod(self.sizes[axis] for axis in kind.axes)

    def again(self, scheduled: Iterable[Collective]) -> None:
        """Copies that the compiler made itself; their names say so."""
        for one in scheduled:
            kind = _kind(one)
            count = min(one.count or 0, self.new[kind])
            if _AGAIN.search(one.name) and count > 0:
                self.explain("again", {}, {kind: count})

    def combine(self) -> None:
        """Each larger one from smaller ones of the same group, the largest first."""
        for kind in sorted(+self.new, key=lambda k: -k.nbytes):
            while self.new[kind] > 0 and (parts := self._parts(kind)):
                runs = min(self.gone[part] // times for part, times in parts.items())
                runs = min(runs, self.new[kind])
                taken = {part: times * runs for part, times in parts.items()}
                self._converted(kind, taken)
                if parts.total() > 1:
                    self.found.append(Rewrite("combined", tuple(taken.items()), ((kind, runs),)))
                self.gone.subtract(taken)
                self.new[kind] -= runs

    def _parts(self, whole: Kind) -> Counter[Kind] | None:
        """What adds up to a whole, taking the largest first; combined scalars fill a tile."""
        pieces = [p for p, count in self.gone.items() if count > 0 and _may_be_in(p, whole)]
        pieces.sort(key=lambda p: (-p.nbytes, p.kind != whole.kind))
        taken: Counter[Kind] = Counter()
        left = whole.nbytes
        for piece in pieces:
            times = min(self.gone[piece], left // piece.nbytes)
            if times > 0:
                taken[piece] = times
                left -= times * piece.nbytes
        is_tile = whole.nbytes == _TILE and taken
        return taken if left == 0 or is_tile else None

    def merge(self, spare: Mapping[Kind, int]) -> None:
        """Repeats go, and nothing comes of them: the first was matched as it is."""
        for kind, count in spare.items():
            if 0 < self.gone[kind] <= count:
                self.explain("once", {kind: self.gone[kind]}, {})

    def hoist(self, fewer: Mapping[Kind, set[int]]) -> None:
        """The runs of all rounds but one go; those of one round were matched as they are."""
        for kind, counts in fewer.items():
            if self.gone[kind] in counts:
                self.explain("once", {kind: self.gone[kind]}, {})
            gather = replace(kind, kind="all_gather")
            if self.gone[gather] in counts and gather.nbytes <= _SMALL:
                # A sum that a gather became was matched with those that are gone.
                self.found.append(Rewrite("once", ((kind, self.gone[gather]),), ()))
                self.explain("summed", {gather: self.gone[gather]}, {})

    def window(self) -> None:
        """n parts around a ring: n - 1 permutes of a part each."""
        for kind, count in list((+self.gone).items()):
            ways = self._ways(kind)
            part = Kind("permute", kind.axes, kind.nbytes // ways)
            runs = (ways - 1) * count
            if kind.kind in ("all_gather", "reduce_scatter") and 0 < runs <= self.new[part]:
                self.explain("windowed", {kind: count}, {part: runs})


def _may_be_in(piece: Kind, whole: Kind) -> bool:
    """Whether one may be a part of another: the same kind, or a sum that was something else."""
    if (piece.axes, piece.is_dcn) != (whole.axes, whole.is_dcn) or piece.nbytes > whole.nbytes:
        return False
    if piece.kind == whole.kind:
        return piece.nbytes < whole.nbytes
    is_small = piece.kind == "all_gather" and piece.nbytes <= _SMALL
    return whole.kind == "all_reduce" and (piece.kind == "reduce_scatter" or is_small)


def _form(one: Collective) -> Name:
    if one.form == "fusion":
        return "fused"
    if one.form == "dcn":
        return "between slices"
    return "as partitioned" if one.form == "sync" else "asynchronous"

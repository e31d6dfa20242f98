"""Flip points: from which batch on another layout wins.

In: a `Question`. Out: `Flip`s in both directions from its batch. A layout (its schemes and their
degrees) holds a batch if no other is faster there by more than a thousandth. The batch is doubled
or halved until it no longer holds, and the last stretch is bisected over batches that it divides;
both sides of a flip are whole searches. Between two batches that were tried there may be more.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from rooflight.algebra.shapes import ways
from rooflight.plan.training.questions.why_not import SAME, Verdict
from rooflight.plan.training.search.candidate import Candidate, Question
from rooflight.plan.training.search.region import Region
from rooflight.plan.training.search.run import Search, search_training
from rooflight.plan.training.search.space import data_axes

Along = Literal["batch", "seq"]
Watch = Callable[[int], None]  # searches done
_FINE = 32  # a flip is known to within a 32nd of its batch, or one more sequence a data shard


@dataclass(frozen=True, slots=True)
class Side:
    """What wins at a size; None where nothing fits or divides."""

    question: Question
    best: Candidate | None
    divides: bool = True  # whether any layout does

    @property
    def tokens(self) -> int:
        return self.question.batch * self.question.seq


@dataclass(frozen=True, slots=True)
class Flip:
    """Two neighbouring sizes: the layout that holds `held`, and how it does at `lost`."""

    along: Along
    held: Side
    lost: Side
    verdict: Verdict  # of the old layout on the new side: slower, does not fit, does not divide
    ratio: float | None  # its time against the new winner's

    @property
    def is_above(self) -> bool:
        """Whether the new layout wins at more tokens."""
        return _size(self.lost, self.along) > _size(self.held, self.along)


def _size(side: Side, along: Along) -> int:
    return side.question.batch if along == "batch" else side.question.seq


@dataclass(frozen=True, slots=True)
class Flips:
    """What holds at the asked size, the flips in order of size, and how far was looked."""

    along: Along
    asked: Side
    found: tuple[Flip, ...]
    least: int
    most: int


def flips(
    question: Question,
    best: Candidate,
    *,
    along: Along = "batch",
    within: int = 16,
    watch: Watch | None = None,
) -> Flips:
    """Every flip found from `1/within` to `within` times the asked size.

    Along seq the tokens of a step stay the same: longer sequences, fewer of them.
    """
    walk = _FlipSearch(along, watch)
    start = Side(question, best)
    below, above = (list(walk.away(start, within, up=up)) for up in (False, True))
    size = _size(start, along)
    return Flips(along, start, (*reversed(below), *above), max(1, size // within), size * within)


class _FlipSearch:
    """Searches along one size, remembering what was found."""

    def __init__(self, along: Along, watch: Watch | None) -> None:
        self._along: Along = along
        self._watch = watch
        self._sides: dict[int, Side] = {}
        self._narrow: dict[object, Search] = {}

    def away(self, start: Side, within: int, *, up: bool) -> Iterator[Flip]:
        """Doubles or halves; where the layout no longer holds, looks between."""
        held = start
        factor = 1
        while factor < within and held.best:
            factor *= 2
            size = _size(start, self._along)
            if not up and size % factor:
                return
            far = self._side(start.question, size * factor if up else size // factor)
            if far is None:
                return
            while held.best and (found := self._flip(held, far)):
                yield found
                held = found.lost
            held = self._holder(held, far) if held.best else held

    def _flip(self, held: Side, far: Side) -> Flip | None:
        """The flip nearest to `held`, if its layout does not hold at the far side."""
        if self._loses(held, far) is None:
            return None
        near = held
        while (size := self._middle(near, far)) is not None:
            side = self._side(held.question, size)
            if side is None:
                break
            if self._loses(held, side) is None:
                near = self._holder(held, side)
            else:
                far = side
        verdict, ratio = self._loses(held, far) or ("slower", None)
        return Flip(self._along, near, far, verdict, ratio)

    def _middle(self, near: Side, far: Side) -> int | None:
        """Half way, where the layout still divides; None if the two are close enough."""
        best = near.best
        low, high = sorted((_size(near, self._along), _size(far, self._along)))
        if best is None or self._along == "seq":  # a sequence of odd length suits no layout
            return None
        unit = ways(data_axes(best.layout), best.mesh.axes)
        middle = (low + high) // 2 // unit * unit
        return middle if low < middle < high and high - low > max(unit, low // _FINE) else None

    def _side(self, question: Question, size: int) -> Side | None:
        """The winner at a size."""
        if size not in self._sides:
            asked = self._at(question, size)
            if asked is None:
                return None
            found = search_training(asked, count=1)
            best = found.candidates[0] if found.candidates else None
            self._sides[size] = Side(asked, best, found.num_priced > 0)
            if self._watch:
                self._watch(len(self._sides))
        return self._sides[size]

    def _at(self, question: Question, size: int) -> Question | None:
        if self._along == "batch":
            return replace(question, batch=size)
        tokens = question.batch * question.seq
        return None if tokens % size else replace(question, seq=size, batch=tokens // size)

    def _loses(self, held: Side, side: Side) -> tuple[Verdict, float | None] | None:
        """How the layout of one side loses at another; None if it holds there too."""
        if held.best is None or side.best is None:
            lost: Verdict = "does not fit" if side.divides else "does not divide"
            return None if held.best is side.best else (lost, None)
        found = self._narrowed(held.best, side)
        if not found.candidates:
            return ("does not fit" if found.num_priced else "does not divide"), None
        ratio = found.candidates[0].step_s / side.best.step_s
        return ("slower", ratio) if ratio > SAME else None

    def _holder(self, held: Side, side: Side) -> Side:
        """The same layout at another size, with the microbatches and remat that suit it there."""
        found = self._narrowed(held.best, side).candidates if held.best else ()
        return replace(side, best=found[0] if found else None)

    def _narrowed(self, best: Candidate, side: Side) -> Search:
        """All layouts of the same schemes and degrees."""
        key = best.degrees, _size(side, self._along)
        if key not in self._narrow:
            ways = {(axis,): size for axis, size in best.mesh.axes.items()}
            region = Region(layouts=(best.layout,), ways={best.layout.text: ways})
            asked = replace(side.question, region=region)
            self._narrow[key] = search_training(asked, count=1)
        return self._narrow[key]

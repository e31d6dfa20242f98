"""The same model on ever more chips: scaling curves, the Pareto front, the smallest slice.

In: a `Question` whose slice is the largest to look at. Out: `ScalingPoint`s, each the best plan of
one slice (`slices`), and what is read off them. Strong scaling keeps the tokens of a step, weak
scaling the tokens of a chip.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from rooflight.hardware.slice import Slice
from rooflight.plan.training.questions.why_not import SAME
from rooflight.plan.training.search.candidate import Candidate, Question
from rooflight.plan.training.search.run import search_training
from rooflight.plan.training.search.slices import slices_up_to

Kind = Literal["strong", "weak"]
KINDS: tuple[Kind, ...] = ("strong", "weak")
Watch = Callable[[int, int], None]  # slices done, slices in all
BENDS = 0.9  # a curve bends where a chip does less than this part of what it does at best
_LITTLE = 0.01
_HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class ScalingPoint:
    """One slice with its best plan; None where no layout divides, or none fits."""

    question: Question
    best: Candidate | None
    divides: bool

    @property
    def on(self) -> Slice:
        return self.question.on

    @property
    def step_s(self) -> float | None:
        return None if self.best is None else self.best.step_s

    @property
    def tokens_per_s(self) -> float:
        """0 where there is no plan."""
        step_s = self.step_s
        return self.question.batch * self.question.seq / step_s if step_s else 0.0

    @property
    def tokens_per_chip_s(self) -> float:
        return self.tokens_per_s / self.on.num_chips

    @property
    def dollars_per_token(self) -> float | None:
        """At the catalog's price of a chip-hour; None where that is unknown."""
        price = self.on.chip.dollars_per_hour
        if price is None or not self.tokens_per_s:
            return None
        return price / _HOUR_S / self.tokens_per_chip_s

    @property
    def binds(self) -> str:
        """What the step waits for; for what is not there, why."""
        if self.best is None:
            return "does not fit" if self.divides else "does not divide"
        return self.best.binds

    @property
    def lost_to(self) -> tuple[str, float] | None:
        """What costs most beside the model's own FLOPs, as a part of the step; None if little."""
        if self.best is None or self.step_s is None:
            return None
        found = losses(self.best)
        name = max(found, key=lambda n: found[n])
        part = found[name] / self.step_s
        return (name, part) if part >= _LITTLE else None


def losses(candidate: Candidate) -> dict[str, float]:
    """The seconds of a step that its FLOPs at the peak do not explain, by reason.

    At the roofline: step = FLOPs / peak + recomputed + waiting for HBM or the slowest stage +
    collectives that matmuls do not hide + bubble. Of a forecast: its breakdown, of which matmuls
    lose what they take beyond FLOPs / peak.
    """
    time, overlap = candidate.time, candidate.overlap
    ideal_s = time.model_flops / time.peak_flops
    if candidate.rank == "forecast":
        found = candidate.forecast.breakdown.named
        return {
            **{name: s for name, s in found.items() if name != "matmuls"},
            "matmuls below peak": max(0.0, found["matmuls"] - ideal_s),
        }
    slow = "uneven stages" if candidate.num_stages > 1 else "HBM bandwidth"
    return {
        "collectives": max(0.0, time.collectives_s(overlap) - time.matmuls_s),
        "bubble": time.bubble_s,
        "recomputing matmuls": time.recompute_s,
        slow: max(0.0, time.matmuls_s - time.recompute_s - ideal_s),
    }


@dataclass(frozen=True, slots=True)
class Scaling:
    """A curve of throughput, fewest chips first."""

    kind: Kind
    points: tuple[ScalingPoint, ...]

    def efficiency(self, point: ScalingPoint) -> float:
        """What a chip does as a part of what a chip does at best, on any of these slices."""
        return point.tokens_per_chip_s / max(p.tokens_per_chip_s for p in self.points)

    @property
    def bend(self) -> ScalingPoint | None:
        """The first slice, past the best one, where efficiency is below `BENDS`."""
        best = max(range(len(self.points)), key=lambda i: self.points[i].tokens_per_chip_s)
        later = (p for p in self.points[best:] if p.best)
        return next((p for p in later if self.efficiency(p) < BENDS), None)

    @property
    def has_points(self) -> bool:
        return any(point.best for point in self.points)


def scale(question: Question, kind: Kind, *, watch: Watch | None = None) -> Scaling:
    """Plans every slice up to the asked one; weakly, those on which sequences stay whole."""
    slices = slices_up_to(question.on)
    asked = [q for on in slices for q in _on(question, on, kind)]
    points: list[ScalingPoint] = []
    for smaller in asked:
        points.append(_point(smaller))
        if watch:
            watch(len(points), len(asked))
    return Scaling(kind, tuple(points))


def _on(question: Question, on: Slice, kind: Kind) -> Iterator[Question]:
    if kind == "strong":
        yield replace(question, on=on)
    elif question.batch * on.num_chips % question.on.num_chips == 0:
        batch = question.batch * on.num_chips // question.on.num_chips
        yield replace(question, on=on, batch=batch)


def _point(question: Question) -> ScalingPoint:
    found = search_training(question, count=1)
    best = found.candidates[0] if found.candidates else None
    return ScalingPoint(question, best, divides=found.num_priced > 0)


def pareto(points: Sequence[ScalingPoint]) -> tuple[ScalingPoint, ...]:
    """Those that no other beats in time, chips and dollars at once.

    Dollars are chips x time here, one chip having one price, so a larger slice stays if it is
    faster by more than a thousandth.
    """
    planned = [p for p in points if p.step_s]
    return tuple(p for p in planned if not any(_beats(other, p) for other in planned))


def _beats(one: ScalingPoint, other: ScalingPoint) -> bool:
    """As fast or faster, on fewer chips; or faster on as many."""
    faster = one.tokens_per_s * SAME >= other.tokens_per_s
    if one.on.num_chips == other.on.num_chips:
        return one.tokens_per_s > other.tokens_per_s * SAME
    return faster and one.on.num_chips < other.on.num_chips


@dataclass(frozen=True, slots=True)
class Smallest:
    """The first slice that will do, and those that were tried before it."""

    limit_s: float | None
    tried: tuple[ScalingPoint, ...]

    @property
    def answer(self) -> ScalingPoint | None:
        last = self.tried[-1]
        return last if _will_do(last, self.limit_s) else None


def smallest_slice(
    question: Question, *, limit_s: float | None = None, watch: Watch | None = None
) -> Smallest:
    """The fewest chips on which a step fits, and takes no longer than `limit_s`."""
    slices = slices_up_to(question.on)
    tried: list[ScalingPoint] = []
    for on in slices:
        tried.append(_point(replace(question, on=on)))
        if watch:
            watch(len(tried), len(slices))
        if _will_do(tried[-1], limit_s):
            break
    return Smallest(limit_s, tuple(tried))


def _will_do(point: ScalingPoint, limit_s: float | None) -> bool:
    step_s = point.step_s
    return step_s is not None and (limit_s is None or step_s <= limit_s)

"""The gap between the planned and the measured step, as causes that were each measured alone.

In: what was planned, what the compiler made of it, what a trace and the event log saw. Out: a
`Gap`. No cause is what the others leave: each is a difference of two figures of its own, and what
they do not add up to is printed as unattributed.

    matmuls      FLOPs that were compiled and not planned; the speed of them against the roof
    passes        bytes of all other ops at the chip's memory rate; their speed against it
    collectives   bytes that were compiled and not planned; devices that wait for the last one;
                  the speed of links against the catalog's; hidden by plan, and not in fact
    between ops   loops and calls in which no op runs
    host          idle devices, by what the host does meanwhile
    profiler      profiled steps less the others, by the event log; the trace has it, the run not
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

Witness = Literal["compiler", "trace", "events"]


@dataclass(frozen=True, slots=True)
class Planned:
    """Seconds of a step by the plan. Collectives are all of them, hidden or not."""

    step_s: float
    matmuls_s: float
    collectives_s: float
    bubble_s: float

    @property
    def exposed_s(self) -> float:
        """Collectives that matmuls do not hide, and the bubble, in which a stage waits for one."""
        return self.step_s - self.matmuls_s


@dataclass(frozen=True, slots=True)
class Compiled:
    """The least seconds that what was compiled takes at the chip's roofs; None is unknown."""

    matmuls_s: float | None
    passes_s: float | None
    collectives_s: float | None


@dataclass(frozen=True, slots=True)
class Traced:
    """Seconds of a profiled step on one device. All but `hidden_s` and `waits_s` add up to it."""

    matmuls_s: float
    passes_s: float
    exposed_s: float  # collectives while nothing else runs
    between_s: float
    gaps_s: Mapping[str, float]  # idle, by what the host did
    unknown_s: float  # idle, and nobody recorded why
    hidden_s: float  # collectives while something computes
    waits_s: float  # in collectives, for the last device

    @property
    def step_s(self) -> float:
        work = self.matmuls_s + self.passes_s + self.exposed_s + self.between_s
        return work + sum(self.gaps_s.values()) + self.unknown_s


@dataclass(frozen=True, slots=True)
class Timed:
    """Seconds of a step by the event log: the median of those nobody recorded, the profiled."""

    step_s: float
    profiled_s: float


@dataclass(frozen=True, slots=True)
class Term:
    """One line of planned, compiled, measured; None is unknown, or nothing that one can say."""

    name: str
    planned_s: float | None
    compiled_s: float | None
    measured_s: float | None


@dataclass(frozen=True, slots=True)
class Cause:
    """Seconds that a step takes longer than planned, and who says so; shorter is negative."""

    name: str
    seconds: float
    witness: Witness


@dataclass(frozen=True, slots=True)
class Gap:
    """From the planned step to the measured one."""

    planned_s: float
    measured_s: float
    terms: tuple[Term, ...]
    causes: tuple[Cause, ...]

    @property
    def seconds(self) -> float:
        return self.measured_s - self.planned_s

    @property
    def unattributed_s(self) -> float:
        return self.seconds - sum(cause.seconds for cause in self.causes)

    @property
    def explained(self) -> float:
        """The part of the gap that causes account for; less than 0 if they miss it by more."""
        return 1 - abs(self.unattributed_s / self.seconds) if self.seconds else 1.0


def explain_gap(planned: Planned, compiled: Compiled, traced: Traced, timed: Timed) -> Gap:
    """Sets the three beside each other, and names every cause.

    >>> planned, compiled = Planned(1.0, 1.0, 0.5, 0.0), Compiled(1.2, 0.1, 0.5)
    >>> traced = Traced(1.5, 0.2, 0.4, 0.0, {}, 0.1, 0.1, 0.0)
    >>> gap = explain_gap(planned, compiled, traced, Timed(2.2, 2.2))
    >>> round(gap.seconds, 6), round(gap.unattributed_s, 6)
    (1.2, 0.1)
    """
    causes = (
        *_matmuls(planned, compiled, traced),
        *_passes(compiled, traced),
        *_collectives(planned, compiled, traced),
        Cause("loops and calls, between ops", traced.between_s, "trace"),
        *(Cause(f"idle: {what}", s, "trace") for what, s in traced.gaps_s.items()),
        Cause("the profiler itself", timed.step_s - timed.profiled_s, "events"),
    )
    kept = tuple(cause for cause in causes if cause.seconds)
    return Gap(planned.step_s, timed.step_s, tuple(_terms(planned, compiled, traced, timed)), kept)


def _matmuls(planned: Planned, compiled: Compiled, traced: Traced) -> Iterator[Cause]:
    least = planned.matmuls_s
    if compiled.matmuls_s is not None:
        yield Cause("matmuls beyond the plan", compiled.matmuls_s - least, "compiler")
        least = compiled.matmuls_s
    yield Cause("speed of matmuls", traced.matmuls_s - least, "trace")


def _passes(compiled: Compiled, traced: Traced) -> Iterator[Cause]:
    """The roof of a plan has none: it is the least that matmuls and collectives take."""
    least = compiled.passes_s or 0.0
    yield Cause("passes over memory, which plans leave out", least, "compiler")
    yield Cause("speed of passes", traced.passes_s - least, "trace")


def _collectives(planned: Planned, compiled: Compiled, traced: Traced) -> Iterator[Cause]:
    planned_hidden = planned.collectives_s + planned.bubble_s - planned.exposed_s
    sent = planned.collectives_s + planned.bubble_s
    if compiled.collectives_s is not None:
        more = compiled.collectives_s - planned.collectives_s
        yield Cause("collectives beyond the plan", more, "compiler")
        sent += more
    yield Cause("waiting for the last device", traced.waits_s, "trace")
    flown = traced.exposed_s + traced.hidden_s
    yield Cause("speed of links", flown - traced.waits_s - sent, "trace")
    yield Cause("less hidden than planned", planned_hidden - traced.hidden_s, "trace")


def _terms(planned: Planned, compiled: Compiled, traced: Traced, timed: Timed) -> Iterator[Term]:
    yield Term("matmuls", planned.matmuls_s, compiled.matmuls_s, traced.matmuls_s)
    yield Term("passes over memory", None, compiled.passes_s, traced.passes_s)
    flown = traced.exposed_s + traced.hidden_s
    yield Term("collectives, in flight", planned.collectives_s, compiled.collectives_s, flown)
    yield Term("  of them exposed", planned.exposed_s - planned.bubble_s, None, traced.exposed_s)
    if planned.bubble_s:
        yield Term("bubble of the pipeline", planned.bubble_s, None, None)
    yield Term("between ops", None, None, traced.between_s)
    yield Term("idle", None, None, sum(traced.gaps_s.values()) + traced.unknown_s)
    yield Term("a profiled step", None, None, timed.profiled_s)
    yield Term("a step", planned.step_s, None, timed.step_s)

"""`rooflight plan train --verify N`: the first layouts compiled, and ranked again."""

from dataclasses import dataclass, replace

from rooflight.api.training import TrainingQuestion
from rooflight.cli.compile_progress import compile_progress
from rooflight.compile.aot.environment import compiler_versions, require_compiler
from rooflight.compile.aot.run import Watch
from rooflight.compile.findings.layout_verdict import NOT_ASKED, LayoutVerdict, order, stand
from rooflight.plan.file.record import Plan
from rooflight.plan.training.search.candidate import Question
from rooflight.plan.training.search.run import Search
from rooflight.units import format_si


@dataclass(frozen=True, slots=True)
class Shortlist:
    """A search in the order that the compiler leaves, and what it said of each layout."""

    found: Search
    verdicts: tuple[LayoutVerdict, ...]  # of `found.candidates`
    compiler: str

    @property
    def does_stand(self) -> bool:
        return self.verdicts[0].word == "passes"

    @property
    def column(self) -> list[str]:
        """A cell for each row of the plan's table."""
        return [_cell(one) for one in self.verdicts]

    @property
    def words(self) -> str:
        """What was asked, what came of it, and every layout that does not stand."""
        asked = [one for one in self.verdicts if one is not NOT_ASKED]
        good = sum(one.word == "passes" for one in asked)
        seconds = sum(one.seconds for one in asked)
        lines = [
            f"compiled: {good} of {len(asked)} pass: collectives as planned, the schedule fits"
            f" ({self.compiler}, {seconds:.0f} s); their times were not asked for"
        ]
        lines += [
            f"{place} {one.because}" for place, one in enumerate(self.verdicts, 1) if one.findings
        ]
        if self.verdicts[0] is NOT_ASKED:
            lines.append(f"1 was not compiled; to ask of all: --verify {len(self.verdicts)}")
        return "\n".join(lines)

    def record(self, training: TrainingQuestion) -> Plan:
        """The plan of the first layout; the verdicts are its choices and its alternatives."""
        plan = training.record(self.found)
        best, *rest = self.verdicts
        why = (
            f"the fastest that passes when compiled ({self.compiler})"
            if self.does_stand
            else f"nothing that was compiled passes ({self.compiler}); this one: {best.because}"
        )
        kept = [replace(c, because=why) if c.what == "layout" else c for c in plan.choices]
        others = [
            other if one is NOT_ASKED else replace(other, because=f"{one.because}; {other.because}")
            for other, one in zip(plan.alternatives, rest, strict=True)
        ]
        return replace(plan, choices=tuple(kept), alternatives=tuple(others))


def require_verify(question: Question) -> None:
    """Fails before the search where nothing could be compiled after it."""
    require_compiler("gpu" if question.on.chip.kind == "gpu" else "tpu")


def verify_search(training: TrainingQuestion, found: Search, count: int) -> Shortlist:
    """Compiles the first `count` layouts of a search and ranks all again."""
    firsts = found.candidates[:count]
    plans = [training.record(replace(found, candidates=(c,))) for c in firsts]
    with compile_progress() as watch:
        said = stand(plans, watch_of=lambda place: _labelled(watch, place, len(plans)))
    verdicts = [*said, *[NOT_ASKED] * (len(found.candidates) - len(said))]
    places = order(verdicts)
    return Shortlist(
        replace(found, candidates=tuple(found.candidates[place] for place in places)),
        tuple(verdicts[place] for place in places),
        _compiler(training.question),
    )


def _labelled(watch: Watch, place: int, count: int) -> Watch:
    def tell(which: int, phase: str, seconds: float) -> None:
        watch(which, f"layout {place + 1} of {count}: {phase}", seconds)

    return tell


def _compiler(question: Question) -> str:
    versions = compiler_versions("gpu" if question.on.chip.kind == "gpu" else "tpu")
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def _cell(one: LayoutVerdict) -> str:
    if one.word == "findings":
        return f"{len(one.findings)} finding{'s' if len(one.findings) > 1 else ''}"
    size = f", {format_si(one.memory_bytes, 'B')}" if one.memory_bytes else ""
    return "-" if one is NOT_ASKED else f"{one.word}{size}"

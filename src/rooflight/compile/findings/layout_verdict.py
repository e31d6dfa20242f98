"""Several plans of one question, verified in fast mode: which pass.

In: `Plan`s, best first. Out: a `LayoutVerdict` each, in the same order. A plan passes if its
program is compiled to a schedule, fits, and has no finding; how long its step takes is not asked.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rooflight.compile.aot.run import Watch
from rooflight.compile.findings.finding import Finding
from rooflight.compile.findings.verify import Verdict, verify
from rooflight.errors import MissingExtraError, UsageError
from rooflight.plan.file.record import Plan
from rooflight.units import format_si

Word = Literal["passes", "findings", "not asked", "does not fit", "not compiled"]
# The order of layouts after the compiler was asked; as priced within each.
WORDS: tuple[Word, ...] = ("passes", "findings", "not asked", "does not fit", "not compiled")


@dataclass(frozen=True, slots=True)
class LayoutVerdict:
    """What the compiler made of a plan, in a word, and what it found wrong."""

    word: Word
    findings: tuple[Finding, ...] = ()
    memory_bytes: int | None = None  # the compiler's total
    seconds: float = 0.0  # that compiling took

    @property
    def because(self) -> str:
        """The word, and the first reason for it."""
        if not self.findings:
            return self.word
        first = self.findings[0]
        if self.word == "does not fit" and first.nbytes:
            return f"{self.word}: {format_si(first.nbytes, 'B')} too many"
        return f"{self.word}: {first.words}"


NOT_ASKED = LayoutVerdict("not asked")


def stand(
    plans: Sequence[Plan],
    *,
    cache: Path | None = None,
    watch_of: Callable[[int], Watch | None] = lambda _: None,
) -> list[LayoutVerdict]:
    """Judges one plan after another; each takes two child processes, of which each takes GBs."""
    return [_standing(plan, cache=cache, watch=watch_of(place)) for place, plan in enumerate(plans)]


def _standing(plan: Plan, *, cache: Path | None, watch: Watch | None) -> LayoutVerdict:
    """A plan that Rooflight's own program cannot have is no reason to stop asking."""
    try:
        verdict = verify(plan, until="scheduled", cache=cache, watch=watch)
    except MissingExtraError:
        raise
    except UsageError as error:
        why = Finding("not_built", str(error), None, None, "", error.hint or "plan another layout")
        return LayoutVerdict("not compiled", (why,))
    return LayoutVerdict(
        _word(verdict),
        verdict.findings,
        verdict.memory.total_bytes if verdict.memory else None,
        max(done.seconds for done in verdict.done),
    )


def _word(verdict: Verdict) -> Word:
    if verdict.failed is None:
        return "findings" if verdict.findings else "passes"
    return "does not fit" if verdict.failed.outcome == "out of memory" else "not compiled"


def order(verdicts: Iterable[LayoutVerdict]) -> list[int]:
    """Places of those that stand first, then as `WORDS`; each as they were before."""
    words = [one.word for one in verdicts]
    return sorted(range(len(words)), key=lambda place: WORDS.index(words[place]))

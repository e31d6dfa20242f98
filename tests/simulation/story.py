"""A schedule drawn from a seed, and told event by event: a seed that fails plays again.

In: a seed. Out: the same choices each time; with a violation, all that happened before it.
"""

import os
import random
from collections.abc import Callable, Iterable

_LAST = 60  # events that a violation shows; a seed that is played again shows all of them
_SEED = "ROOFLIGHT_SEED"  # plays this one alone


class Violation(AssertionError):
    """An invariant that did not hold, with the schedule that led there."""


class Story:
    """What chance decides, and what came of it."""

    def __init__(self, seed: int) -> None:
        self.seed, self.draw = seed, random.Random(seed)
        self.now: Callable[[], float] = lambda: 0.0
        self.lines: list[str] = []

    def tell(self, what: str) -> None:
        self.lines.append(f"{self.now():10.3f} s  {what}")

    def happens(self, chance: float) -> bool:
        return self.draw.random() < chance


def seeds(count: int) -> Iterable[int]:
    """The first of them, or the one that is to be played again."""
    return [int(os.environ[_SEED])] if _SEED in os.environ else range(count)


def play(simulate: Callable[[Story], None], seed: int) -> Story:
    """One schedule; what goes wrong is told with the seed that finds it again."""
    story = Story(seed)
    try:
        simulate(story)
    except Exception as error:
        last = story.lines if _SEED in os.environ else story.lines[-_LAST:]
        told = "\n".join(last)
        raise Violation(f"{told}\nseed {seed}: {type(error).__name__}: {error}") from error
    return story


def first_violation(simulate: Callable[[Story], None], seeds: Iterable[int]) -> str | None:
    """Of the first of these seeds that finds something: the seed, and what it found."""
    for seed in seeds:
        try:
            play(simulate, seed)
        except Violation as violation:
            return str(violation).rpartition("\n")[2]
    return None

"""CPU seconds of a standard machine: those of this one, scaled by a known loop that runs beside.

Not seconds of a clock on the wall: other processes take turns with a test, and their turns do not
count. What they do to shared cores and caches slows down the loop as well.
"""

import time
from collections.abc import Callable

_TURNS, _STANDARD_S = 75_000, 0.010


def slowness() -> float:
    """How many times the CPU seconds of a standard machine the loop takes here and now."""
    begin = time.process_time()
    found: dict[int, int] = {}
    for turn in range(_TURNS):
        found[turn % 97] = found.get(turn % 97, 0) + turn
    return (time.process_time() - begin) / _STANDARD_S


def standard_s(work: Callable[[], object], *, rounds: int = 3) -> float:
    """What some work takes, by the loop before and after it: the least of several rounds."""

    def once() -> float:
        before = slowness()
        begin = time.process_time()
        work()
        spent = time.process_time() - begin
        return 2 * spent / (before + slowness())

    return min(once() for _ in range(rounds))

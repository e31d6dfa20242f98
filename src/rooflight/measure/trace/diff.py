"""Two tables side by side: what got slower and what got faster.

In: two `StepTable`s by the same key. Out: `TimeDiff`s, the largest difference first.
"""

from dataclasses import dataclass

from rooflight.measure.trace.table import StepTable


@dataclass(frozen=True, slots=True)
class TimeDiff:
    """Seconds per step under one key, in both."""

    key: str
    before_s: float
    after_s: float

    @property
    def difference_s(self) -> float:
        return self.after_s - self.before_s


def changes(before: StepTable, after: StepTable) -> tuple[TimeDiff, ...]:
    """Every key of either table; one that is missing took no time."""
    keys = dict.fromkeys([row.key for table in (before, after) for row in table.rows])
    found = [TimeDiff(key, before.seconds_of(key), after.seconds_of(key)) for key in keys]
    return tuple(sorted(found, key=lambda change: -abs(change.difference_s)))

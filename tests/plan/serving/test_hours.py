"""Hours of a fleet with cold starts, against replicas followed one by one through the day."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rooflight.plan.serving.fleet.hours import HOUR_S, paid_replicas, starts

COUNTS = st.lists(st.integers(1, 5), min_size=1, max_size=6)
COLD = st.integers(0, 8 * 60)  # minutes
HOUR = 60  # minutes


def _walk(counts: list[int], cold: int) -> tuple[list[float], list[int], list[int]]:
    """Each replica by itself on a clock of minutes: it stops when it is not needed, and starts so
    long before it is needed again; where that is before it would stop, it stays.

    Out: mean replicas of each hour, starts for it, and replicas that serve at each minute.
    """
    day = len(counts) * HOUR
    paid, began, serving = [0.0] * len(counts), [0] * len(counts), [0] * day
    for replica in range(max(counts)):
        needs = [hour for hour, count in enumerate(counts) if count > replica]
        up = {hour * HOUR + minute for hour in needs for minute in range(HOUR)}
        serves = set(up)
        for end, again in pairwise([*needs, needs[0] + len(counts)]):
            idle = range((end + 1) * HOUR, again * HOUR)
            if len(idle) <= cold:
                serves |= {minute % day for minute in idle}
                up |= {minute % day for minute in idle}
            else:
                began[again % len(counts)] += 1
                up |= {minute % day for minute in range(again * HOUR - cold, again * HOUR)}
        for minute in up:
            paid[minute // HOUR] += 1 / HOUR
        for minute in serves:
            serving[minute] += 1
    return paid, [n if len(counts) > 1 else 0 for n in began], serving


@given(COUNTS, COLD)
def test_hours_are_those_of_replicas_followed_one_by_one(counts: list[int], cold: int) -> None:
    paid, began, serving = _walk(counts, cold)
    assert paid_replicas(counts, cold * 60) == pytest.approx(paid)
    assert starts(counts, cold * 60) == began
    # And no minute has fewer that serve than its hour needs.
    assert all(serving[m] >= counts[m // HOUR] for m in range(len(serving)))


@given(COUNTS)
def test_replicas_that_serve_at_once_are_paid_by_the_hour(counts: list[int]) -> None:
    assert paid_replicas(counts, 0.0) == counts


@given(COUNTS, st.floats(0, 9 * HOUR_S), st.floats(0, 9 * HOUR_S))
def test_a_longer_start_never_costs_less_nor_more_than_the_peak(
    counts: list[int], one: float, other: float
) -> None:
    short, long = (paid_replicas(counts, seconds) for seconds in sorted((one, other)))
    assert all(a <= b + 1e-9 for a, b in zip(short, long, strict=True))
    assert all(paid >= count - 1e-9 for paid, count in zip(short, counts, strict=True))
    assert max(long) <= max(counts) + 1e-9
    assert paid_replicas(counts, 100 * HOUR_S) == [max(counts)] * len(counts)

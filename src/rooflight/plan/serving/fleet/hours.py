"""A fleet hour by hour: as many replicas as the rate needs, each started before it serves.

In: a fleet, the rates of hours that repeat, and the seconds from starting a replica to its first
request. Out: for each hour its replicas, those that start for it, and what is paid.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rooflight.plan.serving.fleet.plan import Fleet, fewest_replicas

HOUR_S = 3600


@dataclass(frozen=True, slots=True)
class Hour:
    """The rate of an hour, and the fewest replicas that serve it; spares are there all day."""

    rate: float
    fleet: Fleet
    starts: int  # replicas that were not there before, and serve from its beginning
    paid_replicas: float  # its mean, with spares and those that start for hours to come
    cold_start_s: float

    @property
    def dollars(self) -> float:
        return self.paid_replicas * self.fleet.way.dollars


def hourly_fleets(
    best: Fleet, rates: Sequence[float], *, cold_start_s: float = 0.0
) -> tuple[Hour, ...]:
    """The same way to serve, hour by hour; the first hour follows the last."""
    known: dict[float, Fleet] = {}
    for rate in dict.fromkeys(rates):
        demand = replace(best.demand, rate=rate)
        fleet = fewest_replicas(best.way, demand, spare=best.spare)
        if fleet:
            known[rate] = fleet
    served = [rate for rate in rates if rate in known]
    counts = [known[rate].paid_replicas for rate in served]
    found = zip(
        served, starts(counts, cold_start_s), paid_replicas(counts, cold_start_s), strict=True
    )
    return tuple(Hour(rate, known[rate], new, paid, cold_start_s) for rate, new, paid in found)


def paid_replicas(counts: Sequence[int], cold_start_s: float) -> list[float]:
    """Mean replicas of each hour: at any time the most that the next `cold_start_s` seconds need.

    A replica that is needed again before it could start anew stays, which costs no more.

    >>> paid_replicas([2, 2, 5, 3], 900), paid_replicas([5, 2, 5, 2], 4000)
    ([2.0, 2.75, 5.0, 3.0], [5.0, 5.0, 5.0, 5.0])
    """
    whole, part = divmod(cold_start_s / HOUR_S, 1)
    ahead = min(int(whole), len(counts))
    return [
        (1 - part) * max(_cut(counts, hour, ahead + 1)) + part * max(_cut(counts, hour, ahead + 2))
        for hour in range(len(counts))
    ]


def starts(counts: Sequence[int], cold_start_s: float) -> list[int]:
    """Replicas that an hour needs and that nothing in the `cold_start_s` seconds before it did.

    >>> starts([2, 2, 5, 3], 900), starts([5, 2, 5, 2], 4000)
    ([0, 0, 3, 0], [0, 0, 0, 0])
    """
    back = min(int(cold_start_s // HOUR_S), len(counts)) + 1
    return [
        max(0, count - max(_cut(counts, hour - back, back))) for hour, count in enumerate(counts)
    ]


def saving(hours: Sequence[Hour]) -> float:
    """The part of the cost that following the rate saves, of a fleet as large as the peak needs."""
    peak = max(hour.fleet.dollars_per_hour for hour in hours)
    return 1 - sum(hour.dollars for hour in hours) / (peak * len(hours))


def _cut(counts: Sequence[int], first: int, length: int) -> list[int]:
    return [counts[(first + i) % len(counts)] for i in range(length)]

"""Questions after a fleet: twice the traffic, and day against night.

In: a fleet, a search. Out: the fleets that other traffic needs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from rooflight.plan.serving.fleet import Fleet, FleetSearch, fewest_replicas
from rooflight.plan.serving.fleet_demand import Demand

DOUBLED = ("rate", "input", "output")


@dataclass(frozen=True, slots=True)
class Doubled:
    """The cheapest fleet where one thing is twice as much; None where no fleet will do."""

    what: str
    fleet: Fleet | None


def doubled_demands(demand: Demand, search: Callable[[Demand], FleetSearch]) -> tuple[Doubled, ...]:
    """Rate, prompts and answers twice as much, one at a time."""
    return tuple(Doubled(what, search(demand.scaled(**{what: 2.0})).best) for what in DOUBLED)


@dataclass(frozen=True, slots=True)
class Hour:
    """The rate of an hour, and the fewest replicas that serve it; spares are there all day."""

    rate: float
    fleet: Fleet


def hourly_fleets(best: Fleet, rates: Sequence[float]) -> tuple[Hour, ...]:
    """The same way to serve, hour by hour; starting a replica is taken to be free and at once."""
    known: dict[float, Fleet] = {}
    for rate in dict.fromkeys(rates):
        demand = replace(best.demand, rate=rate)
        fleet = fewest_replicas(best.way, demand, spare=best.spare)
        if fleet:
            known[rate] = fleet
    return tuple(Hour(rate, known[rate]) for rate in rates if rate in known)


def saving(hours: Sequence[Hour]) -> float:
    """The part of the cost that following the rate saves, of a fleet as large as the peak needs."""
    dollars = [hour.fleet.dollars_per_hour for hour in hours]
    return 1 - sum(dollars) / (max(dollars) * len(dollars))

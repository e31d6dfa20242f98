"""Questions after a fleet: twice the traffic, another layout, and day against night.

In: a fleet, a search. Out: the fleets that other traffic needs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from rooflight.errors import UsageError
from rooflight.hardware.slice import Slice
from rooflight.plan.serving.fleet.demand import Demand
from rooflight.plan.serving.fleet.plan import Fleet, FleetSearch, fewest_replicas
from rooflight.plan.serving.simulate.setup import Setup
from rooflight.plan.serving.step.layout import ServingLayout

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
class WhyNotFleet:
    """A layout that was not chosen: its best fleet if it has one, and what speaks against it."""

    layout: ServingLayout
    fleet: Fleet | None
    because: str


def why_not(best: Fleet, layout: ServingLayout, search: FleetSearch, on: Slice) -> WhyNotFleet:
    """Of a search among fleets of this layout alone; `on` is a slice that it was tried on."""
    setup, fleet = best.way.setup, search.best
    if fleet is None and search.num_ways:
        return WhyNotFleet(layout, None, "however many replicas, it does not meet the SLO")
    if fleet is None:
        return WhyNotFleet(layout, None, _obstacle(replace(setup, on=on, layout=layout)))
    if fleet.way.setup == setup:
        return WhyNotFleet(layout, fleet, "it is the fleet above")
    own, other = best.way.bound, fleet.way.bound
    chips = setup.on.num_chips, fleet.way.setup.on.num_chips
    parts = {
        "prompts": other.prefill_s * chips[1] / (own.prefill_s * chips[0]),
        "tokens": other.generate_s * chips[1] / max(own.generate_s * chips[0], 1e-12),
    }
    words = " and ".join(f"{name} take {ratio:.2f}x" for name, ratio in parts.items())
    return WhyNotFleet(layout, fleet, f"{words} the chip-seconds, at least")


def _obstacle(setup: Setup) -> str:
    try:
        setup.limits()
        setup.cost()
    except UsageError as error:
        return str(error).splitlines()[0]
    return "the longest request does not fit"


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

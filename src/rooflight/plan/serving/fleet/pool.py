"""Several models on one pool of chips: the cheapest replicas of each, and spares that they share.

In: the plan of each model alone. Out: a `PoolPlan`. Weights stay on their replicas, so no replica
serves two models; a spare slice holds no weights yet, so it stands in for whichever model lost one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rooflight.plan.serving.fleet.plan import Fleet
from rooflight.plan.serving.fleet.search import FleetPlan


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """The plan of each model, and its fleet in the pool; none where one of them has no fleet."""

    plans: tuple[FleetPlan, ...]
    fleets: tuple[Fleet, ...]

    @property
    def spares(self) -> tuple[Fleet, ...]:
        """Of each chip the fleet whose spares are the largest: they suffice for the others."""
        largest: dict[str, Fleet] = {}
        for fleet in self.fleets:
            name = fleet.way.setup.on.chip.name
            if name not in largest or _spare_chips(fleet) > _spare_chips(largest[name]):
                largest[name] = fleet
        return tuple(fleet for fleet in largest.values() if fleet.spare)

    @property
    def num_chips(self) -> int:
        working = sum(fleet.num_chips - _spare_chips(fleet) for fleet in self.fleets)
        return working + sum(_spare_chips(fleet) for fleet in self.spares)

    @property
    def dollars_per_hour(self) -> float:
        working = sum(fleet.replicas * fleet.way.dollars for fleet in self.fleets)
        return working + sum(fleet.spare * fleet.way.dollars for fleet in self.spares)

    @property
    def apart_dollars(self) -> float | None:
        """The cheapest fleet of each, with spares of its own."""
        best = [plan.best for plan in self.plans if plan.best]
        whole = len(best) == len(self.plans)
        return sum(fleet.dollars_per_hour for fleet in best) if whole else None


def _spare_chips(fleet: Fleet) -> int:
    return fleet.spare * fleet.way.setup.on.num_chips


def pool_fleets(plans: Sequence[FleetPlan]) -> PoolPlan:
    """On one chip for all, or on the cheapest of each, whichever costs less."""
    chips = [chip for chip in plans[0].found if all(chip in plan.found for plan in plans)]
    offers = [[plan.found[chip].best for plan in plans] for chip in chips]
    offers.append([plan.best for plan in plans])
    pools = [
        PoolPlan(tuple(plans), whole)
        for fleets in offers
        if len(whole := tuple(fleet for fleet in fleets if fleet)) == len(plans)
    ]
    none = PoolPlan(tuple(plans), ())
    return min(pools, key=lambda pool: pool.dollars_per_hour, default=none)

"""The cheapest fleet on each of several chips, and the questions after it.

In: a `FleetQuestion`: a model, a `Demand`, slices by chip, prices. Out: a `FleetPlan`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from rooflight.errors import UsageError
from rooflight.hardware.slice import Slice
from rooflight.models.spec import ModelSpec
from rooflight.plan.serving.fleet.demand import Demand
from rooflight.plan.serving.fleet.disaggregate import PolicyComparison, disaggregate_or_not
from rooflight.plan.serving.fleet.hours import Hour, hourly_fleets
from rooflight.plan.serving.fleet.plan import (
    Doubled,
    Fleet,
    FleetSearch,
    Watch,
    WhyNotFleet,
    cheapest_fleet,
    doubled_demands,
    why_not,
)
from rooflight.plan.serving.fleet.way import FleetPolicy, Way, ways_to_serve
from rooflight.plan.serving.simulate.engine_sizes import AskedSizes
from rooflight.plan.serving.simulate.setup import Features
from rooflight.plan.serving.step.layout import Precision, ServingLayout, parse_serving_layout

_NONE = Features()


@dataclass(frozen=True, slots=True)
class FleetQuestion:
    """What is served to whom, on what, how, and at what price."""

    model: ModelSpec
    demand: Demand
    slices: Mapping[str, Sequence[Slice]]  # by chip
    precision: Precision
    prices: Mapping[str, float]  # of a chip-hour
    policies: Sequence[FleetPolicy]
    layouts: Sequence[ServingLayout]  # none: all that could be
    engine: str | None  # whose calibration; None is the roofs'
    sizes: AskedSizes
    spare: int
    features: Features = _NONE

    def search(
        self, slices: Sequence[Slice], demand: Demand, watch: Watch | None = None
    ) -> FleetSearch:
        """Among ways that somebody took; among all where none of those keeps the SLO."""
        search = partial(cheapest_fleet, demand=demand, spare=self.spare, watch=watch)
        found = search(self.ways(slices, demand))
        if found.best is None and not self.layouts:
            found = search(self.ways(slices, demand, novel=True))
        return found

    def ways(
        self, slices: Sequence[Slice], demand: Demand, *, novel: bool = False
    ) -> tuple[Way, ...]:
        """What could serve it, where `novel` also as nobody did."""
        return ways_to_serve(
            self.model,
            slices,
            demand,
            precisions=[self.precision],
            prices=self.prices,
            policies=self.policies,
            layouts=self.layouts,
            engine=self.engine,
            sizes=self.sizes,
            features=self.features,
            novel=novel,
        )


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """The cheapest fleet of every chip, and of all; None where no fleet meets the SLO."""

    question: FleetQuestion
    found: Mapping[str, FleetSearch]  # by chip
    best: Fleet | None

    @property
    def verdict(self) -> PolicyComparison | None:
        """Whether prefill should have replicas of its own."""
        asked, best = self.question, self.best
        return best and disaggregate_or_not(best.way.setup, asked.demand, engine=asked.engine)

    def doubled(self, watch: Watch | None = None) -> tuple[Doubled, ...]:
        """The fleets of the same chip for twice the rate, the prompts or the answers."""
        asked, slices = self.question, self._slices
        return doubled_demands(asked.demand, lambda other: asked.search(slices, other, watch))

    def hourly(self, rates: Sequence[float], *, cold_start_s: float = 0.0) -> tuple[Hour, ...]:
        """The fleet hour by hour, at these rates; a replica serves so long after it starts."""
        found = self.best
        return hourly_fleets(found, rates, cold_start_s=cold_start_s) if found else ()

    def why_not(self, layout: str, watch: Watch | None = None) -> WhyNotFleet | None:
        """The same search with this layout alone, on the slices that it fills."""
        if self.best is None:
            return None
        asked = parse_serving_layout(layout)
        slices = self._slices
        suits = [on for on in slices if on.num_chips == asked.num_chips] or list(slices)
        only = replace(self.question, layouts=(asked,))
        return why_not(self.best, asked, only.search(suits, self.best.demand, watch), suits[-1])

    def runner_up(self, watch: Watch | None = None) -> Fleet | None:
        """The cheapest fleet of the same chip, by replicas of another size or layout."""
        if self.best is None:
            return None
        asked, setup = self.question, self.best.way.setup
        every = asked.ways(self._slices, asked.demand)
        others = [w for w in every if (w.setup.on, w.setup.layout) != (setup.on, setup.layout)]
        return cheapest_fleet(others, asked.demand, spare=asked.spare, watch=watch).best

    def without_draft(self, watch: Watch | None = None) -> Fleet | None:
        """The cheapest fleet of the same chip whose steps make a token each, if others do."""
        if not self.question.features.draft:
            return None
        plain = replace(self.question, features=replace(self.question.features, draft=None))
        return plain.search(self._slices, plain.demand, watch).best

    @property
    def _slices(self) -> Sequence[Slice]:
        return self.question.slices[self.best.way.setup.on.chip.name] if self.best else ()


def plan_fleet(question: FleetQuestion, watch: Watch | None = None) -> FleetPlan:
    """Searches chip by chip; raises where nothing holds the model and its longest request."""
    demand = question.demand
    found = {
        chip: question.search(slices, demand, watch) for chip, slices in question.slices.items()
    }
    if not any(search.num_ways for search in found.values()):
        raise UsageError(
            f"nothing holds {question.model.name} and a request of {demand.work().longest:,}"
            " positions",
            hint="give larger slices or smaller dtypes, fewer --rows, or leave out --layout",
        )
    fleets = [search.best for search in found.values() if search.best]
    best = min(fleets, key=lambda fleet: fleet.rank, default=None)
    return FleetPlan(question, found, best)

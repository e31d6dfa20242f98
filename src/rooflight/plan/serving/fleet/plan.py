"""The cheapest fleet that meets the SLO of a demand: bounds first, simulations where they decide.

In: a `Demand` and ways to serve it. Out: a `Fleet`, whose own simulation meets the SLO. Ways
are tried from the cheapest bound up; of each, replicas are raised from the bound until the
simulation meets the SLO; the search ends where the next bound is no cheaper than what is found.
It equals trying everything where more replicas never serve worse, and where no traffic is served
with fewer than smooth traffic of the same mean needs, less what chance may spare.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from statistics import NormalDist

from rooflight.errors import UsageError
from rooflight.hardware.slice import Slice
from rooflight.plan.serving.fleet.demand import NORMAL_80, Demand
from rooflight.plan.serving.fleet.way import Way
from rooflight.plan.serving.simulate.run import PoolSplit, Simulation, simulate
from rooflight.plan.serving.simulate.setup import Setup
from rooflight.plan.serving.simulate.tally import Quantiles
from rooflight.plan.serving.step.layout import ServingLayout

DOUBLED = ("rate", "input", "output")

Watch = Callable[[int, int, int], None]  # ways done, all ways, simulations

MOST_SIMULATED = 16  # replicas; a larger fleet is simulated as so many, at their share of the rate
_FEW = 200  # requests that show what nothing helps
_MOST_LIKE = 3  # ways with more evidence that are tried at the price of the cheapest fleet
_MOST_REPLICAS = 64  # times the least: beyond, a fleet is as good as idle
_ROUNDING = 1e-9
_MILLION, _HOUR_S = 1e6, 3600


@dataclass(frozen=True, slots=True)
class Fleet:
    """Replicas that serve a demand with the spares broken; all of them are paid for."""

    way: Way
    demand: Demand
    prefill_replicas: int  # of `replicas`, that only prefill; 0 where all do everything
    replicas: int
    spare: int
    simulation: Simulation
    simulated_rate: float

    def __str__(self) -> str:
        setup, spare = self.way.setup, f" + {self.spare} spare" if self.spare else ""
        kinds = ""
        if self.prefill_replicas:
            generate = self.replicas - self.prefill_replicas
            kinds = f" ({self.prefill_replicas} prefill, {generate} generate)"
        return f"{self.replicas}{spare} x {setup.on} {setup.layout}{kinds}"

    @property
    def paid_replicas(self) -> int:
        return self.replicas + self.spare

    @property
    def num_chips(self) -> int:
        return self.paid_replicas * self.way.setup.on.num_chips

    @property
    def dollars_per_hour(self) -> float:
        return self.paid_replicas * self.way.dollars

    @property
    def doubted_dollars(self) -> float:
        """An hour, times what a way with less evidence has to win by."""
        return self.dollars_per_hour * self.way.doubt

    @property
    def rank(self) -> tuple[bool, float]:
        """What comes first is the answer: ways that somebody took, then the doubted dollars."""
        return self.way.is_novel, self.doubted_dollars

    @property
    def latencies(self) -> list[tuple[str, float | None, float, Quantiles]]:
        """Each with the target, if any, and the floor."""
        found, targets = self.simulation, dict(self.demand.slo.targets)
        floor = found.floor
        times = (
            ("TTFT", floor.ttft_s, found.ttft),
            ("TPOT", floor.tpot_s, found.tpot),
            ("E2E", floor.e2e_s, found.e2e),
        )
        return [(name, targets.get(name), least, q) for name, least, q in times if q]

    @property
    def chances(self) -> dict[str, float]:
        """That so many requests keep each SLO: its room over the forecast, by held-out errors."""
        known = {"TTFT": self.way.first_token, "TPOT": self.way.calibration}
        percentile = self.demand.percentile
        return {
            name: NormalDist().cdf(math.log(slo_s / q.at(percentile)) * NORMAL_80 / one.spread)
            for name, slo_s, _, q in self.latencies
            if slo_s and (one := known.get(name))
        }

    @property
    def physics_replicas(self) -> float:
        """Replicas, not whole ones, that catalog rates would need if every step were full."""
        return self.demand.rate * self.way.physics.together_s

    @property
    def paid(self) -> float:
        """How many times the physics one pays."""
        return self.paid_replicas / self.physics_replicas

    @property
    def dollars_per_million(self) -> float:
        """Of all tokens, in and out."""
        work = self.demand.work()
        return self._dollars_each(work.input_tokens + work.output_tokens)

    @property
    def dollars_per_million_in(self) -> float:
        """Of prompt tokens that are computed; like all three, by shares of the least work."""
        bound = self.way.bound
        return self._dollars_each(
            self.demand.work().prompt_tokens, bound.prefill_s - bound.cached_s
        )

    @property
    def dollars_per_million_cached(self) -> float | None:
        """Of prompt tokens that the cache holds: new ones attend to them. None where none are."""
        work = self.demand.work()
        cached = work.input_tokens - work.prompt_tokens
        return self._dollars_each(cached, self.way.bound.cached_s) if cached else None

    @property
    def dollars_per_million_out(self) -> float:
        return self._dollars_each(self.demand.work().output_tokens, self.way.bound.generate_s)

    def _dollars_each(self, tokens: float, seconds: float | None = None) -> float:
        """Of a million of so many tokens per request, which take so much of the least work."""
        bound = self.way.bound
        share = 1.0 if seconds is None else seconds / (bound.prefill_s + bound.generate_s)
        return share * self.dollars_per_hour / (self.demand.rate * _HOUR_S * tokens) * _MILLION


@dataclass(frozen=True, slots=True)
class FleetSearch:
    """The cheapest fleet, None where no way meets the SLO, and how it was found."""

    best: Fleet | None
    num_ways: int
    num_simulations: int
    untried: Way | None  # could be cheaper by its bound, by a layout that nobody measured


def cheapest_fleet(
    ways: Sequence[Way], demand: Demand, *, spare: int = 0, watch: Watch | None = None
) -> FleetSearch:
    """Searches ways in the order of their least dollars; what was measured less counts dearer.

    Ways that split as nobody does are searched only where no other keeps the SLO.
    """
    best: Fleet | None = None
    trials = Trials(demand)
    order = sorted(ways, key=lambda way: (way.is_novel, way.doubt * _least_dollars(way, spare)))
    for i, way in enumerate(order):
        below = best.doubted_dollars / way.doubt if best else math.inf
        if best and (way.is_novel > best.way.is_novel or _least_dollars(way, spare) >= below):
            break
        best = _cheapest_of(way, trials, spare, below) or best
        if watch:
            watch(i + 1, len(ways), trials.count)
    best = best and _more_measured(best, ways, trials)
    return FleetSearch(best, len(ways), trials.count, _untried(ways, best, spare))


def _more_measured(best: Fleet, ways: Sequence[Way], trials: "Trials") -> Fleet:
    """The fleet of the same dollars whose very layout was measured most."""
    rows, dollars = best.way.rows_alike, best.dollars_per_hour * (1 + _ROUNDING)
    alike = [
        (way, count)
        for way in sorted(ways, key=lambda way: -way.rows_alike)
        if way.rows_alike > rows
        and way.doubt <= best.way.doubt
        and (count := math.floor(dollars / way.dollars) - best.spare) >= way.fewest_replicas
    ]
    fleets = (trials.fleet(way, count, best.spare) for way, count in alike[:_MOST_LIKE])
    return next((fleet for fleet in fleets if fleet), best)


def _untried(ways: Sequence[Way], best: Fleet | None, spare: int) -> Way | None:
    below = best.dollars_per_hour if best and not best.way.unseen else 0.0
    new = [w for w in ways if w.unseen and not w.is_novel and _least_dollars(w, spare) < below]
    return min(new, key=lambda way: _least_dollars(way, spare), default=None)


def fewest_replicas(way: Way, demand: Demand, *, spare: int = 0) -> Fleet | None:
    """The smallest fleet of one way, for a demand of any rate."""
    return _cheapest_of(replace(way, rate=demand.rate), Trials(demand), spare, math.inf)


def _least_dollars(way: Way, spare: int) -> float:
    return (way.fewest_replicas + spare) * way.dollars


def _cheapest_of(way: Way, trials: "Trials", spare: int, below: float) -> Fleet | None:
    """The least replicas of a way that meet the SLO for less than `below`."""
    if way.fewest_replicas == math.inf:
        return None
    least = int(way.fewest_replicas)
    most = least * _MOST_REPLICAS
    fleet: Fleet | None = None
    if below < math.inf:
        most = min(most, math.ceil(below / way.dollars - _ROUNDING) - spare - 1)
        fleet = trials.fleet(way, most, spare) if most >= least else None
        if fleet is None:  # not even as many as could still be cheaper
            return None
    elif not trials.keeps_unloaded(way):
        return None
    failed, count, step = least - 1, most, 0
    while least + step < count:
        found = trials.fleet(way, least + step, spare)
        if found:
            fleet, count = found, least + step
            break
        failed, step = least + step, max(1, 2 * step)
    while fleet and count - failed > 1:
        middle = (count + failed) // 2
        smaller = trials.fleet(way, middle, spare)
        count, failed = (middle, failed) if smaller else (count, middle)
        fleet = smaller or fleet
    return fleet


class Trials:
    """Simulations of a demand, counted."""

    def __init__(self, demand: Demand) -> None:
        self.demand = demand
        self.count = 0
        self._warm = demand.warm

    def keeps_unloaded(self, way: Way) -> bool:
        """True if requests that never meet another are served within the SLO, by a few of them."""
        disaggregated = way.policy == "disaggregated"
        found = self._simulate(way, int(disaggregated), 2 if disaggregated else 1, None)
        unsure = 3 * math.sqrt(self.demand.share * (1 - self.demand.share) / found.num_requests)
        return self.demand.is_kept(found, unsure)

    def fleet(self, way: Way, replicas: int, spare: int) -> Fleet | None:
        """So many replicas, split in whichever way meets the SLO; None where none does.

        What is late says which kind is missing: first tokens wait for replicas that prefill.
        """
        low, high, prefill = _splits(way, replicas)
        while low <= prefill <= high:
            share, part, prefills = _part(prefill, replicas)
            rate = self.demand.rate * share
            found = self._simulate(way, prefills, part, rate)
            if self.demand.is_kept(found):
                return Fleet(way, self.demand, prefill, replicas, spare, found, rate)
            first, each = self._late(way, found)
            if first == each:
                return None
            low, high = (prefill + 1, high) if first else (low, prefill - 1)
            prefill = (low + high) // 2
        return None

    def _late(self, way: Way, found: Simulation) -> tuple[bool, bool]:
        """Whether too many first tokens are late, and too many tokens after them."""
        slos, percentile = way.held_classes(self.demand), self.demand.percentile
        parts = [(p.ttft, p.tpot, slos[p.priority]) for p in found.by_priority if slos]
        late = [
            (
                first is None or first.at(percentile) > slo.ttft_s,
                each is not None and each.at(percentile) > slo.tpot_s,
            )
            for first, each, slo in parts or [(found.ttft, found.tpot, way.held(self.demand))]
        ]
        return any(first for first, _ in late), any(each for _, each in late)

    def _simulate(self, way: Way, prefill: int, replicas: int, rate: float | None) -> Simulation:
        self.count += 1
        demand = self.demand
        requests = demand.requests(demand.rate if rate is None else rate)
        fleet: int | PoolSplit = replicas
        if way.transfer:
            fleet = PoolSplit(prefill, replicas - prefill, way.transfer)
        return simulate(
            islice(demand.alone(), _FEW) if rate is None else demand.arrivals(rate),
            cost=way.cost,
            limits=way.limits,
            replicas=fleet,
            slo=way.held(demand),
            slos=way.held_classes(demand),
            warm=self._warm,
            most_late=math.inf if rate is None else (1 - demand.share) * requests,
        )


def _splits(way: Way, replicas: int) -> tuple[int, int, int]:
    """Replicas that prefill: the least, the most, and those that share the slack evenly."""
    prefill, generate = way.least
    if way.policy == "continuous":
        return 0, 0, 0
    slack = replicas - prefill - generate
    return prefill, prefill + slack, prefill + round(slack * prefill / (prefill + generate))


def _part(prefill: int, replicas: int) -> tuple[float, int, int]:
    """Of a fleet: the share of the rate that is simulated, on how many replicas of either kind.

    No replica of the part has less to do than one of the fleet.
    """
    if replicas <= MOST_SIMULATED:
        return 1.0, replicas, prefill
    if not prefill:
        return MOST_SIMULATED / replicas, MOST_SIMULATED, 0
    prefills = min(max(1, round(MOST_SIMULATED * prefill / replicas)), MOST_SIMULATED - 1)
    share = max(prefills / prefill, (MOST_SIMULATED - prefills) / (replicas - prefill))
    return min(1.0, share), MOST_SIMULATED, prefills


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

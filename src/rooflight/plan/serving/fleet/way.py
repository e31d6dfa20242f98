"""`Way`: one kind of replica that a fleet could be made of, and the least it can cost.

In: a model, slices, dtypes, prices, a `Demand`. Out: every way that could serve it, cheapest bound
first. A way is a slice, a layout and a policy: continuous replicas that do everything, or
disaggregated ones that prefill or generate.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from rooflight.batching.request import Limits
from rooflight.errors import UsageError
from rooflight.hardware.calibration import Calibration
from rooflight.hardware.catalog import chip_names, load_chip
from rooflight.hardware.chip import Chip
from rooflight.hardware.slice import Slice
from rooflight.models.spec import ModelSpec
from rooflight.plan.serving.fleet.bound import Bound, MeanSteps, candidate_layouts, least_seconds
from rooflight.plan.serving.fleet.cost import CalibratedCost, blocks_of, fleet_cost, is_mixture
from rooflight.plan.serving.fleet.demand import Demand
from rooflight.plan.serving.fleet.evidence import (
    disaggregated,
    extrapolated,
    novel_of,
    rows_of,
    unseen_of,
)
from rooflight.plan.serving.fleet.smooth import disaggregated_rate, together_rate
from rooflight.plan.serving.simulate.engine_sizes import AskedSizes
from rooflight.plan.serving.simulate.fleet import Transfer
from rooflight.plan.serving.simulate.setup import Features, Setup
from rooflight.plan.serving.simulate.tally import Slo
from rooflight.plan.serving.step.cost import StepCost
from rooflight.plan.serving.step.layout import Precision, ServingLayout
from rooflight.plan.serving.step.memory import ServingMemory
from rooflight.plan.training.search.slices import largest_slice, slices_up_to
from rooflight.units import positive

FleetPolicy = Literal["continuous", "disaggregated"]
FLEET_POLICIES: tuple[FleetPolicy, ...] = ("continuous", "disaggregated")
_OWN, _NONE = AskedSizes(), Features()
_ROUNDING = 1e-9
_LUCK = 1.15  # requests of a simulation may be fewer or shorter than the mean: 1.08 was seen
_SIZES = 3  # sizes of a chip that are tried, from the smallest that holds the model


@dataclass(frozen=True, slots=True)
class Way:
    """A replica with its cost, limits and bounds."""

    setup: Setup
    policy: FleetPolicy
    cost: StepCost
    limits: Limits
    transfer: Transfer | None  # between replicas; None where nothing travels
    calibration: Calibration | None
    dollars: float  # a replica-hour
    rate: float
    bound: Bound
    physics: Bound  # at catalog rates and without an SLO
    smooth_rate: float  # requests per second of a replica in smooth traffic
    unseen: tuple[str, ...] = ()  # of the layout, that no two measured rows had

    @property
    def doubt(self) -> float:
        """By how many times a way with less evidence has to be cheaper than one with more."""
        if self.calibration is None:
            return 1.0
        blocks, apart = blocks_of(self.setup.model), self.policy == "disaggregated"
        layout = extrapolated(blocks) if self.unseen else 0.0
        return math.exp(math.hypot(layout, disaggregated(blocks) if apart else 0.0))

    @property
    def is_novel(self) -> bool:
        """True if it splits in a way that nobody measured, on any kind of chip."""
        return bool(novel_of(self.setup.layout, self.setup.on.chip))

    @property
    def rows_alike(self) -> int:
        """Measured rows of this very layout, on chips of the kind."""
        setup = self.setup
        return rows_of(setup.layout, setup.on.chip.kind, blocks_of(setup.model))

    @property
    def first_token(self) -> Calibration | None:
        """What times to the first token rest on."""
        return self.cost.first_token if isinstance(self.cost, CalibratedCost) else None

    def held_classes(self, demand: Demand) -> dict[int, Slo]:
        """The same of each class, by its priority."""
        return {one.priority: self.held(demand, one.slo) for one in demand.classes}

    def held(self, demand: Demand, own: Slo | None = None) -> Slo:
        """The SLO that simulated times are held to, so that it is kept as surely as asked."""
        slo, first, each = own or demand.slo, self.first_token, self.calibration
        return Slo(
            slo.ttft_s / (demand.slack(first.spread) if first else 1.0),
            slo.tpot_s / (demand.slack(each.spread) if each else 1.0),
        )

    @property
    def least(self) -> tuple[int, int]:
        """Replicas that only prefill, and all others, at least."""
        if self.policy == "continuous":
            return 0, _whole(self.rate * self.bound.together_s)
        prefill_s, generate_s = self.bound.prefill_s, self.bound.generate_s
        return _whole(self.rate * prefill_s), _whole(self.rate * generate_s)

    @property
    def least_replicas(self) -> int:
        return sum(self.least)

    @property
    def fewest_replicas(self) -> float:
        """From how many on a try is worth it: traffic is at best as easy as if it were smooth."""
        if not self.smooth_rate:
            return math.inf
        return max(self.least_replicas, _whole(self.rate / self.smooth_rate / _LUCK))

    @property
    def least_dollars(self) -> float:
        """An hour, without spares."""
        return self.fewest_replicas * self.dollars

    def __str__(self) -> str:
        setup = self.setup
        return f"{setup.on} {setup.layout} {setup.precision} {self.policy}"


def _whole(replicas: float) -> int:
    return max(1, math.ceil(replicas - _ROUNDING))


def chip_slices(chip: Chip, model: ModelSpec, precision: Precision) -> tuple[Slice, ...]:
    """The smallest slice of a chip that holds the model, and doublings of it."""
    few = [Slice(chip, shape) for shape in _below_a_host(chip)]
    found: list[Slice] = []
    for on in (*few, *slices_up_to(largest_slice(chip))):
        if found or _holds(model, on, precision):
            found.append(on)
        if len(found) == _SIZES:
            break
    return tuple(found)


def _below_a_host(chip: Chip) -> Iterator[tuple[int, ...]]:
    """GPUs of a node by twos; squares of the flat tori (cubes are sold by the host)."""
    if chip.torus:
        if chip.torus.dims == 2:
            yield from ((n, n) for n in (1, 2) if n * n < chip.host_chips)
    else:
        yield from ((n,) for n in (1, 2, 4) if n < chip.host_chips)


def _holds(model: ModelSpec, on: Slice, precision: Precision) -> bool:
    """True if one sequence fits, however the slice is split."""
    try:
        layouts = candidate_layouts(model, on.num_chips)
    except UsageError:
        return False
    return any(ServingMemory(model, on, x, precision).held(1, 1).fits for x in layouts)


def ways_to_serve(
    model: ModelSpec,
    slices: Sequence[Slice],
    demand: Demand,
    *,
    precisions: Sequence[Precision],
    prices: Mapping[str, float],
    policies: Sequence[FleetPolicy] = FLEET_POLICIES,
    layouts: Sequence[ServingLayout] = (),
    engine: str | None = None,
    sizes: AskedSizes = _OWN,
    features: Features = _NONE,
    novel: bool = True,
) -> tuple[Way, ...]:
    """Every way that can hold the longest request, the least dollars first.

    Those that split as nobody measured are left out unless `novel`, or their layouts are given.
    """
    found: list[Way] = []
    for on in slices:
        price, held = chip_price(on.chip, prices), sizes.on(on.chip, engine)
        for layout in layouts or _layouts(model, on, novel=novel):
            for precision in precisions:
                setup = Setup(model, on, layout, precision, held, features)
                found += _ways(setup, demand, policies, price * on.num_chips, engine)
    return tuple(sorted(found, key=lambda way: way.least_dollars))


def _layouts(model: ModelSpec, on: Slice, *, novel: bool) -> tuple[ServingLayout, ...]:
    try:
        every = candidate_layouts(model, on.num_chips)
    except UsageError:
        return ()
    return tuple(layout for layout in every if novel or not novel_of(layout, on.chip))


def _ways(
    setup: Setup,
    demand: Demand,
    policies: Sequence[FleetPolicy],
    dollars: float,
    engine: str | None,
) -> Iterator[Way]:
    work = demand.work()
    try:
        limits = setup.limits()
    except UsageError:
        return
    if limits.pool_tokens < work.longest:
        return
    context = max(1, round(work.positions / max(1.0, work.row_steps)))
    input_tokens = max(1, round(work.input_tokens))
    cost, roofs, calibration = fleet_cost(
        setup, input_tokens=input_tokens, context=context, engine=engine
    )
    bound, physics = (
        least_seconds(
            one,
            limits,
            work,
            tpot_s=tpot_s,
            unit=setup.on.num_chips,
            is_convex=not is_mixture(setup.model),
            interference=added,
        )
        for one, tpot_s, added in (
            (
                cost,
                demand.slo.tpot_s,
                min(1.0, cost.interference) if isinstance(cost, CalibratedCost) else 0.0,
            ),
            (roofs, math.inf, 0.0),
        )
    )
    blocks = blocks_of(setup.model)
    unseen = unseen_of(setup.layout, setup.on.chip, blocks) if calibration else ()
    steps, tpot_s = MeanSteps(cost, limits, work, setup.on.num_chips), demand.slo.tpot_s
    known = calibration, dollars, demand.rate, bound, physics
    if "continuous" in policies:
        smooth = together_rate(steps, tpot_s)
        yield Way(setup, "continuous", cost, limits, None, *known, smooth, unseen)
    if transfer := transfer_of(setup) if "disaggregated" in policies else None:
        smooth = disaggregated_rate(steps, transfer, tpot_s)
        yield Way(setup, "disaggregated", cost, limits, transfer, *known, smooth, unseen)


def transfer_of(setup: Setup) -> Transfer | None:
    """The way of a cache between two replicas; None where the chip has no network."""
    try:
        return setup.transfer()
    except UsageError:
        return None


def hourly_prices(prices: Mapping[str, float | str] | str) -> dict[str, float]:
    """Dollars of a chip-hour of every chip that has a price; own ones come before the catalog's."""
    offer = prices if isinstance(prices, str) else str(prices.get("", "on-demand"))
    asked = ((name, load_chip(name).price(offer)) for name in chip_names())
    found = {name: dollars for name, dollars in asked if dollars is not None}
    if not found:
        clouds = sorted({cloud for name in chip_names() for cloud in load_chip(name).prices})
        raise UsageError(
            f"the catalog has no prices of {offer!r}",
            hint=f"write v5e=1.20, on-demand, spot, or gcp or gcp/spot, of {', '.join(clouds)}",
        )
    own = {} if isinstance(prices, str) else {n: p for n, p in prices.items() if n}
    given = {load_chip(n).name: positive("--price", p, example="v5e=1.20") for n, p in own.items()}
    return found | given


def chip_price(chip: Chip, prices: Mapping[str, float]) -> float:
    """Dollars of a chip-hour; a price that nobody states is asked for before any work."""
    price = prices.get(chip.name)
    if price is None:
        raise UsageError(
            f"nobody has said what an hour of {chip.title} costs",
            hint=f"add --price {chip.name}=DOLLARS, of one chip and hour",
        )
    return price

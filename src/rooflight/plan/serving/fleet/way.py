"""`Way`: one kind of replica that a fleet could be made of, and the least it can cost.

In: a model, slices, dtypes, prices, a `Demand`. Out: every way that could serve it, cheapest bound
first. A way is a slice, a layout and a policy: continuous replicas that do everything, or
disaggregated ones that prefill or generate.

Which serving layouts have been measured: how many ways published rows split each scheme. A layout
that goes further is an extrapolation: it is not the answer unless it wins by more. So are replicas
that are disaggregated, by as much as their rows are predicted worse. A layout with a scheme that
nobody measured on anything is the answer only where no other keeps the SLO.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from rooflight.batching.request import Limits
from rooflight.errors import UsageError
from rooflight.hardware.calibration import DENSE, Calibration
from rooflight.hardware.catalog import chip_names, load_chip
from rooflight.hardware.chip import Chip
from rooflight.hardware.serving_calibration import SERVING_FOLDER
from rooflight.hardware.slice import Slice
from rooflight.models.spec import ModelSpec
from rooflight.plan.serving.fleet.bound import Bound, candidate_layouts, least_seconds
from rooflight.plan.serving.fleet.cost import CalibratedCost, blocks_of, fleet_cost, is_mixture
from rooflight.plan.serving.fleet.demand import Demand
from rooflight.plan.serving.simulate.engine_sizes import AskedSizes
from rooflight.plan.serving.simulate.fleet import Transfer
from rooflight.plan.serving.simulate.setup import Setup
from rooflight.plan.serving.simulate.tally import Slo
from rooflight.plan.serving.step.cost import StepCost
from rooflight.plan.serving.step.layout import Precision, ServingLayout
from rooflight.plan.serving.step.memory import ServingMemory
from rooflight.plan.training.search.slices import largest_slice, slices_up_to
from rooflight.units import positive

EVIDENCE_FILE = SERVING_FOLDER / "evidence.json"
_TWICE = 2  # rows: what was measured once may be chance
_SCHEMES = ("tp", "pp", "dp", "ep", "ws", "cp")

FleetPolicy = Literal["continuous", "disaggregated"]
FLEET_POLICIES: tuple[FleetPolicy, ...] = ("continuous", "disaggregated")
_OWN = AskedSizes()
_ROUNDING = 1e-9
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
        return bool(novel_of(self.setup.layout))

    @property
    def rows_alike(self) -> int:
        """Measured rows of this very layout, on chips of the kind."""
        setup = self.setup
        return rows_of(setup.layout, setup.on.chip.kind, blocks_of(setup.model))

    @property
    def first_token(self) -> Calibration | None:
        """What times to the first token rest on."""
        return self.cost.first_token if isinstance(self.cost, CalibratedCost) else None

    def held(self, demand: Demand) -> Slo:
        """The SLO that simulated times are held to, so that it is kept as surely as asked."""
        slo, first, each = demand.slo, self.first_token, self.calibration
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
    def least_dollars(self) -> float:
        """An hour, without spares."""
        return self.least_replicas * self.dollars

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
                setup = Setup(model, on, layout, precision, held)
                found += _ways(setup, demand, policies, price * on.num_chips, engine)
    return tuple(sorted(found, key=lambda way: way.least_dollars))


def _layouts(model: ModelSpec, on: Slice, *, novel: bool) -> tuple[ServingLayout, ...]:
    try:
        every = candidate_layouts(model, on.num_chips)
    except UsageError:
        return ()
    return tuple(layout for layout in every if novel or not novel_of(layout))


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
    kind = setup.on.chip.kind, blocks_of(setup.model)
    unseen = unseen_of(setup.layout, *kind) if calibration else ()
    transfer = transfer_of(setup) if "disaggregated" in policies else None
    for policy in policies:
        moved = transfer if policy == "disaggregated" else None
        if moved or policy == "continuous":
            known = (cost, limits, moved, calibration, dollars, demand.rate, bound, physics)
            yield Way(setup, policy, *known, unseen)


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


@lru_cache(maxsize=1)
def _index() -> dict[str, Any]:
    return json.loads(EVIDENCE_FILE.read_text(encoding="utf-8"))


def extrapolated(blocks: str) -> float:
    """What 80 % of rows stay within, in logs, when no fit saw their source."""
    return float(_index()["extrapolated"][blocks])


def disaggregated(blocks: str) -> float:
    """What 80 % of rows with disaggregated prefill stay within, in logs, held out."""
    return float(_index()["disaggregated"][blocks])


@lru_cache(maxsize=1024)
def rows_of(layout: ServingLayout, kind: str, blocks: str) -> int:
    """Measured rows of a layout.

    >>> rows_of(ServingLayout(tp=8), "gpu", "dense") > rows_of(ServingLayout(tp=6), "gpu", "dense")
    True
    """
    own = {"kind": kind, "blocks": blocks, "kv": layout.kv}
    own |= {name: n for name in _SCHEMES if (n := getattr(layout, name)) > 1}
    told = ("chip", "engine", "rows")
    rows = _index()["rows"]
    return sum(r["rows"] for r in rows if {k: v for k, v in r.items() if k not in told} == own)


@lru_cache(maxsize=1024)
def novel_of(layout: ServingLayout) -> tuple[str, ...]:
    """Schemes of a layout that no two rows had on any chip.

    >>> novel_of(ServingLayout(tp=4, pp=2)), novel_of(ServingLayout(tp=4, ep=4))
    (('pp=2',), ())
    """
    rows = _index()["rows"]
    ways = {name: getattr(layout, name) for name in _SCHEMES}
    return tuple(f"{name}={n}" for name, n in ways.items() if n > 1 and _most(rows, name) == 1)


def unseen_of(layout: ServingLayout, kind: str, blocks: str) -> tuple[str, ...]:
    """What of a layout no two rows had; dense models' count too.

    >>> unseen_of(ServingLayout(tp=4, pp=2), "gpu", "dense")
    ('pp=2',)
    """
    rows = [r for r in _index()["rows"] if r["kind"] == kind and r["blocks"] in (blocks, DENSE)]
    if not rows:
        return ()
    found: list[str] = []
    for name in _SCHEMES:
        ways, most = getattr(layout, name), _most(rows, name)
        if ways > most:
            found.append(f"{name}={ways}" + (f" ({most} measured)" if most > 1 else ""))
    if sum(r["rows"] for r in rows if r["kv"] == layout.kv) < _TWICE:
        found.append(f"kv={layout.kv}")
    return tuple(found)


def _most(rows: Sequence[dict[str, Any]], name: str) -> int:
    """The most ways that two rows split a scheme."""
    ways = sorted(r.get(name, 1) for r in rows for _ in range(min(_TWICE, r["rows"])))
    return ways[-_TWICE] if len(ways) >= _TWICE else 1

"""A served model: the cheapest fleet for a traffic, and requests through a simulated one."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

from rooflight.api.replica import (
    MOST_QUEUED,
    SIZES,
    asked_sizes,
    engine_of,
    read_features,
    read_setup,
)
from rooflight.api.traffic import TrafficLoad, read_slo, read_traffic
from rooflight.api.values import Count, Number, slice_of
from rooflight.batching.request import Policy
from rooflight.errors import UsageError
from rooflight.hardware.calibration import ANY, Calibration
from rooflight.hardware.catalog import find_chip
from rooflight.hardware.slice import Slice
from rooflight.models.presets import load_model
from rooflight.models.spec import ModelSpec
from rooflight.plan.serving.fleet.cost import fleet_cost
from rooflight.plan.serving.fleet.demand import Demand, DemandClass
from rooflight.plan.serving.fleet.plan import Watch as SearchWatch
from rooflight.plan.serving.fleet.search import FleetPlan, FleetQuestion, plan_fleet
from rooflight.plan.serving.fleet.way import (
    FLEET_POLICIES,
    FleetPolicy,
    chip_price,
    chip_slices,
    hourly_prices,
)
from rooflight.plan.serving.simulate.arrivals import parse_lengths
from rooflight.plan.serving.simulate.run import OPEN_ONLY, PoolSplit, Simulation, Watch
from rooflight.plan.serving.simulate.run import simulate as run_simulation
from rooflight.plan.serving.simulate.setup import SchedulerLimits, Setup
from rooflight.plan.serving.simulate.tally import Slo
from rooflight.plan.serving.step.cost import StepCost
from rooflight.plan.serving.step.layout import (
    Precision,
    parse_serving_layout,
    precision_of,
)
from rooflight.units import positive, whole

SimulatedPolicy = Literal["continuous", "interleaved", "static", "disaggregated"]
SIMULATED_POLICIES: tuple[SimulatedPolicy, ...] = get_args(SimulatedPolicy)
MOST_REPLICAS = 10_000
_MOST_SPARES = 1000
_MOST_REQUESTS = 10**6
_MOST_BYTES = 10**16
REQUESTS = 10_000  # that are simulated unless said


def plan_serving(
    model: str | ModelSpec,
    *,
    rate: Number,
    isl: Count,
    osl: Count,
    ttft: Number | None = None,
    tpot: Number | None = None,
    on: str | Iterable[str | Slice] | None = None,
    layout: str | None = None,
    dtypes: str | None = None,
    prices: Mapping[str, Number] | str = "on-demand",
    spare: Count = 1,
    policy: FleetPolicy | None = None,
    engine: str = ANY,
    rows: Count | None = None,
    step_tokens: Count | None = None,
    draft_tokens: Count | None = None,
    acceptance: Number | None = None,
    draft_model: str | ModelSpec | None = None,
    expert_skew: Number | None = None,
    redundant_experts: Count | None = None,
    adapters: Count | None = None,
    adapter_rank: Count | None = None,
    adapters_resident: Count | None = None,
    percentile: Number = 95,
    confidence: Number = 50,
    hit_rate: Number = 0,
    burstiness: Number = 1,
    requests: Count | None = None,
    seed: Count = 0,
    classes: Sequence[DemandClass] = (),
    watch: SearchWatch | None = None,
) -> FleetPlan:
    """The cheapest fleet that serves a model's traffic as promised, on each chip and of all.

    `on` has chips, each tried in several sizes, or slices; every chip with a price if left out.
    Lengths are numbers or distributions such as `1024~0.8`; `prices` are dollars of a chip-hour by
    chip, or whose: `gcp`, `aws/spot`, or of all clouds the middle one, `on-demand` or `spot`.
    `dtypes` are of weights, cache and matmuls, `int8/bf16/bf16`; as published if left out.
    `classes` are parts of the traffic with priorities and SLOs of their own (`plan_workloads`).

    >>> asked = {"rate": 2, "isl": 512, "osl": 64, "ttft": "1s", "tpot": "50ms"}
    >>> plan = plan_serving("llama3.2-1b", **asked, on="v5e:1x1", requests=200)
    >>> plan.best.replicas, plan.best.simulation.good_share >= 0.95
    (1, True)
    """
    spec = load_model(model)
    precision = precision_of(spec, dtypes)
    sizes = asked_sizes(rows, step_tokens)
    if sizes.rows and step_tokens is not None:
        whole("--step-tokens", step_tokens, most=10**7, least=sizes.rows)  # one for each
    paid = hourly_prices(prices)
    features = read_features(
        spec,
        draft_tokens=draft_tokens,
        acceptance=acceptance,
        draft_model=draft_model,
        expert_skew=expert_skew,
        redundant_experts=redundant_experts,
        adapters=adapters,
        adapter_rank=adapter_rank,
        adapters_resident=adapters_resident,
    )
    layouts = (parse_serving_layout(layout),) if layout else ()
    for one in layouts:
        features.check(spec, one)
    question = FleetQuestion(
        spec,
        Demand(
            positive("--rate", rate),
            parse_lengths(str(isl), what="--isl"),
            parse_lengths(str(osl), what="--osl"),
            read_slo(ttft, tpot),
            percentile=positive("--percentile", percentile, example="95"),
            confidence=positive("--confidence", confidence, example="90"),
            hit_rate=0.0
            if hit_rate in (0, "0")
            else positive("--hit-rate", hit_rate, example="0.5"),
            burstiness=positive("--burstiness", burstiness, example="1"),
            seed=whole("--seed", seed, most=10**9, least=0),
            num_requests=None
            if requests is None
            else whole("--requests", requests, most=_MOST_REQUESTS, least=100),
            classes=tuple(classes),
        ),
        _slices(on, spec, precision, paid),
        precision,
        paid,
        (policy,) if policy else FLEET_POLICIES,
        layouts,
        engine_of(engine),
        sizes,
        whole("--spare", spare, most=_MOST_SPARES, least=0),
        features,
    )
    return plan_fleet(question, watch)


def _slices(
    on: str | Iterable[str | Slice] | None,
    model: ModelSpec,
    precision: Precision,
    prices: Mapping[str, float],
) -> dict[str, list[Slice]]:
    """By chip: the slices that were named, or several sizes of a chip; each has a price."""
    found: dict[str, list[Slice]] = {}
    if on is None:
        on = prices
    for word in on.split(",") if isinstance(on, str) else on:
        chip = find_chip(word.strip()) if isinstance(word, str) else None
        if chip is None:
            slices = [slice_of(word)]
        else:
            slices = list(chip_slices(chip, model, precision))
            found.setdefault(chip.name, [])
        for one in slices:
            chip_price(one.chip, prices)
            found.setdefault(one.chip.name, []).append(one)
    return found


@dataclass(frozen=True, slots=True)
class SimulationQuestion:
    """Replicas, the traffic that comes to them, and its SLO."""

    setup: Setup
    load: TrafficLoad
    slo: Slo
    replicas: int
    prefill_replicas: int | None  # None: by work
    cost: StepCost
    calibration: Calibration | None  # that the cost rests on
    counts_hits: bool = False  # against the size of the cache

    def obstacle(self, policy: SimulatedPolicy) -> str | None:
        """Why a policy cannot be."""
        if policy == "disaggregated" and (self.load.concurrency or self.load.has_turns):
            return OPEN_ONLY
        few = policy == "disaggregated" and self.replicas < 2
        return "disaggregated needs a prefill and a generate replica" if few else None

    def run(self, policy: SimulatedPolicy, watch: Watch | None = None) -> Simulation:
        load, replicas = self.load, self.replicas
        if obstacle := self.obstacle(policy):
            add = "add --replicas 2"
            if obstacle == OPEN_ONLY:
                add = "write --rate for --concurrency" if load.concurrency else "leave out turns"
            raise UsageError(obstacle, hint=f"{add}, or choose another --policy")
        own = Policy.CONTINUOUS if policy == "disaggregated" else Policy(policy)
        fleet: int | PoolSplit = replicas
        if policy == "disaggregated":
            fleet = self.setup.peer(
                replicas,
                prefill_replicas=self.prefill_replicas,
                input_tokens=load.input_tokens,
                output_tokens=load.output_tokens,
                cost=self.cost,
            )
        return run_simulation(
            load.arrivals(),
            cost=self.cost,
            limits=self.setup.limits(own),
            replicas=fleet,
            slo=self.slo,
            watch=watch,
            concurrency=load.concurrency,
            has_turns=load.has_turns,
            offload=self.setup.offload,
            counts_hits=self.counts_hits,
        )


def simulation_question(
    setup: Setup,
    load: TrafficLoad,
    slo: Slo,
    *,
    replicas: Count = 1,
    prefill_replicas: Count | None = None,
    engine: str = ANY,
    host_memory: Count | None = None,
    ssd: Count | None = None,
    ssd_bandwidth: Count | None = None,
    hit_curve: bool = False,
) -> SimulationQuestion:
    """Prices steps at the mean lengths of the traffic."""
    if {host_memory, ssd, ssd_bandwidth} != {None}:
        setup = replace(setup, sizes=_with_tiers(setup.sizes, host_memory, ssd, ssd_bandwidth))
    prompt, half = load.input_tokens, load.output_tokens // 2
    cost, _, known = fleet_cost(
        setup, input_tokens=prompt, context=prompt + half, engine=engine_of(engine)
    )
    few, own = whole("--replicas", replicas, most=MOST_REPLICAS), prefill_replicas
    prefill = None if own is None else whole("--prefill-replicas", own, most=MOST_REPLICAS)
    return SimulationQuestion(setup, load, slo, few, prefill, cost, known, hit_curve)


def _with_tiers(
    sizes: SchedulerLimits, host: Count | None, ssd: Count | None, rate: Count | None
) -> SchedulerLimits:
    """With room for prefixes below HBM; a tier of SSD is below host memory."""
    for name, given, above in (("--ssd", ssd, host), ("--ssd-bandwidth", rate, ssd)):
        if given is not None and above is None:
            more = "--host-memory 100GB" if name == "--ssd" else "--ssd 4TB"
            raise UsageError(f"{name} without {more.split()[0]}", hint=f"add {more}")
    return replace(
        sizes,
        host_bytes=whole("--host-memory", host or 0, most=_MOST_BYTES),
        ssd_bytes=0 if ssd is None else whole("--ssd", ssd, most=_MOST_BYTES),
        ssd_bytes_per_s=rate and whole("--ssd-bandwidth", rate, most=_MOST_BYTES),
    )


def simulate(
    model: str | ModelSpec,
    *,
    on: str | Slice,
    rate: Number | None = None,
    isl: Count | None = None,
    osl: Count | None = None,
    ttft: Number | None = None,
    tpot: Number | None = None,
    concurrency: Count | None = None,
    burstiness: Number = 1,
    prefix_tokens: Count | None = None,
    prefixes: Count = 1,
    turns: Count | None = None,
    think: Number | None = None,
    trace: str | Path | None = None,
    requests: Count | None = None,
    seed: Count = 0,
    layout: str | None = None,
    dtypes: str | None = None,
    replicas: Count = 1,
    prefill_replicas: Count | None = None,
    policy: SimulatedPolicy = "continuous",
    engine: str = ANY,
    rows: Count | None = None,
    step_tokens: Count | None = None,
    block_tokens: Count = SIZES.block_tokens,
    max_waiting: Count = SIZES.max_waiting,
    draft_tokens: Count | None = None,
    acceptance: Number | None = None,
    draft_model: str | ModelSpec | None = None,
    expert_skew: Number | None = None,
    redundant_experts: Count | None = None,
    adapters: Count | None = None,
    adapter_rank: Count | None = None,
    adapters_resident: Count | None = None,
    host_memory: Count | None = None,
    ssd: Count | None = None,
    ssd_bandwidth: Count | None = None,
    hit_curve: bool = False,
) -> Simulation:
    """Requests, random or of a trace, through the real scheduler under a virtual clock.

    >>> served = simulate("llama3-8b", on="v5e:2x4", rate=4, isl=512, osl=64, requests=100)
    >>> served.num_finished, served.ttft.p50 > served.floor.ttft_s
    (100, True)

    With `turns` a session sends its next turn `think` after the answer, with all that was said:

    >>> asked = {"rate": 1, "isl": 256, "osl": 64, "turns": 8, "think": "5s", "requests": 200}
    >>> chat = simulate("llama3-8b", on="v5e:2x4", **asked)
    >>> chat.num_finished, chat.cached_share > 0.5
    (200, True)
    """
    setup = read_setup(
        model,
        on=on,
        layout=layout,
        dtypes=dtypes,
        engine=engine,
        rows=rows,
        step_tokens=step_tokens,
        block_tokens=block_tokens,
        max_waiting=max_waiting,
        draft_tokens=draft_tokens,
        acceptance=acceptance,
        draft_model=draft_model,
        expert_skew=expert_skew,
        redundant_experts=redundant_experts,
        adapters=adapters,
        adapter_rank=adapter_rank,
        adapters_resident=adapters_resident,
    )
    load = read_traffic(
        rate=rate,
        isl=isl,
        osl=osl,
        concurrency=concurrency,
        burstiness=burstiness,
        prefix_tokens=prefix_tokens,
        prefixes=prefixes,
        turns=turns,
        think=think,
        trace=trace,
        requests=requests,
        seed=seed,
        default=REQUESTS,
        most=MOST_QUEUED,
    )
    return simulation_question(
        setup,
        load,
        read_slo(ttft, tpot),
        replicas=replicas,
        prefill_replicas=prefill_replicas,
        engine=engine,
        host_memory=host_memory,
        ssd=ssd,
        ssd_bandwidth=ssd_bandwidth,
        hit_curve=hit_curve,
    ).run(policy)

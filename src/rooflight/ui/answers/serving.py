"""A fleet as an `Answer`: what it is, its latencies and cost, and what that rests on."""

import math
from collections.abc import Iterator

from rooflight.hardware.calibration import Calibration
from rooflight.plan.serving.fleet.plan import Fleet
from rooflight.plan.serving.fleet.search import FleetPlan
from rooflight.ui.answer import Answer, Column, Fact, Table, show_dollars, show_seconds


def fleet_answer(model: str, plan: FleetPlan) -> Answer:
    """The cheapest fleet; or that there is none. `model` is as it was named."""
    fleet, demand = plan.best, plan.question.demand
    if fleet is None:
        return Answer((f"no fleet serves {model} so: {demand}",))
    return Answer(
        sentences=(
            f"{fleet}: {many(fleet.num_chips, 'chip')}, ${fleet.dollars_per_hour:,.2f} an hour",
            f"{model}, {fleet.way.setup.precision}; {demand}",
        ),
        facts=(
            Fact("dollars_per_hour", "an hour", fleet.dollars_per_hour, show_dollars),
            Fact("replicas", "replicas", fleet.replicas, None, f"and {fleet.spare} spare"),
            Fact(
                "dollars_per_million",
                "a million tokens",
                fleet.dollars_per_million,
                show_dollars,
                f"{show_dollars(fleet.dollars_per_million_in)} in,"
                f" {show_dollars(fleet.dollars_per_million_out)} out",
            ),
            Fact(
                "paid",
                "times the physics",
                fleet.paid,
                lambda v: f"{v:.2f}",
                "replicas paid for, over those that catalog rates would need",
            ),
        ),
        tables=(_latencies(fleet),),
        notes=(
            "",
            _cost(fleet),
            _needs(fleet),
            _physics(fleet),
            _simulated(fleet),
            trust(fleet.way.calibration),
            *_first_token(fleet),
            *_evidence(plan, fleet),
        ),
    )


def _latencies(fleet: Fleet) -> Table:
    columns = (
        Column("latency", ""),
        *(Column(f"{n}_s", n, show_seconds) for n in ("slo", "floor", "p50", "p95", "p99")),
    )
    rows = tuple((*known, q.p50, q.p95, q.p99) for *known, q in fleet.latencies)
    return Table("latencies", "Simulated latencies of requests", columns, rows, is_first=True)


def _cost(fleet: Fleet) -> str:
    cached = fleet.dollars_per_million_cached
    rest = "" if cached is None else f", ${cached:.3f} cached"
    chip, paid = fleet.way.setup.on.chip, fleet.dollars_per_hour / fleet.num_chips
    source = chip.source_of("dollars_per_hour")
    where = ""
    if source and math.isclose(paid, chip.dollars_per_hour or 0):
        several = f"the middle of {len(chip.prices)} clouds"
        whose = several if len(chip.prices) > 1 else " ".join(chip.prices)
        where = f" on demand ({whose}, {source.checked})"
    return (
        f"cost: ${fleet.dollars_per_million_in:.3f} a million tokens in{rest},"
        f" ${fleet.dollars_per_million_out:.3f} out; ${fleet.dollars_per_million:.3f} of all;"
        f" ${paid:.3g} a chip-hour{where}"
    )


def _needs(fleet: Fleet) -> str:
    way, rate = fleet.way, fleet.demand.rate
    bound = way.bound
    first = "prompts" if bound.prefill_s > bound.generate_s else "tokens"
    return (
        f"binds: {first}; prompts need {rate * bound.prefill_s:.2f} replicas, tokens"
        f" {rate * bound.generate_s:.2f}, in all at least {way.least_replicas};"
        f" at most {bound.rows:.0f} rows each, by the {bound.rows_by}"
    )


def _physics(fleet: Fleet) -> str:
    return (
        f"floor: {fleet.physics_replicas:.2f} replicas if every step were full and at its roof:"
        f" you pay {fleet.paid:.2f}x the physics"
    )


def _simulated(fleet: Fleet) -> str:
    found, broken = fleet.simulation, ", spares broken" if fleet.spare else ""
    part = ""
    if found.replicas < fleet.replicas:
        part = f" (a part of the fleet at its share, {fleet.simulated_rate:.4g} requests/s)"
    return (
        f"simulated: {found.good_share:.1%} of {found.num_requests:,} requests within the SLO on"
        f" {many(found.replicas, 'replica')}{part}{broken}; {found.busy_share:.0%} busy,"
        f" {found.mean_rows:.0f} rows per step"
    )


def _first_token(fleet: Fleet) -> Iterator[str]:
    """What times to the first token rest on, and how surely each SLO is kept."""
    known, demand = fleet.way.first_token, fleet.demand
    if fleet.way.calibration and not known:
        yield "TTFT: too few measured it on such chips; prompts are priced as they slow tokens"
    elif known:
        yield trust(known, "TTFT")
    if fleet.chances:
        kept = ", ".join(f"{name} {_chance(one)}" for name, one in fleet.chances.items())
        more = "; --confidence 90 plans for more" if demand.confidence < 90 else ""
        yield f"chance that {demand.percentile:g}% keep it, by held-out errors: {kept}{more}"


def _chance(chance: float) -> str:
    """Errors have longer tails than a normal curve, so nothing is certain."""
    return "over 99%" if chance > 0.99 else f"{chance:.0%}"


def _evidence(plan: FleetPlan, best: Fleet) -> Iterator[str]:
    """What of the layout nobody measured, or which such layout could be cheaper."""
    if best.way.unseen:
        what = ", ".join(best.way.unseen)
        yield (
            f"extrapolates: fewer than two measured rows have {what}, so it had to be"
            f" x{best.way.doubt:.2f} cheaper than others to come first"
        )
    new = plan.found[best.way.setup.on.chip.name].untried
    if new:
        dollars = (new.least_replicas + best.spare) * new.dollars
        yield (
            f"worth measuring: {new.setup.on} {new.setup.layout} could cost ${dollars:,.2f} an hour"
            f" at least, but fewer than two measured rows have {', '.join(new.unseen)}"
        )


def trust(known: Calibration | None, what: str = "calibrated") -> str:
    """What the seconds of a step rest on, and how far they are off."""
    if known is None:
        return "uncalibrated: the roofline bound; measured engines take 1.5-3x as long"
    return (
        f"{what}: engine {known.engine} on {known.chip}, {known.rows} measured rows; held-out"
        f" median error {known.median_error:.0%}, 80% within x{math.exp(known.spread):.2f}"
    )


def searched(plan: FleetPlan) -> str:
    """How much was tried."""
    ways = sum(search.num_ways for search in plan.found.values())
    simulations = sum(search.num_simulations for search in plan.found.values())
    tried = f"{ways:,} ways to serve on {many(len(plan.found), 'kind')} of chip"
    return f"{tried}, {simulations:,} simulations"


def many(count: int, thing: str) -> str:
    """`1 chip`, `1,024 chips`."""
    return f"{count:,} {thing}" if count == 1 else f"{count:,} {thing}s"

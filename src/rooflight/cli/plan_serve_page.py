"""What `rooflight plan serve` shows: the fleet, its latencies and cost, other chips beside it."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from rooflight.cli.serving_flags import trust
from rooflight.plan.serving.fleet.disaggregate import PolicyComparison
from rooflight.plan.serving.fleet.plan import Fleet
from rooflight.plan.serving.fleet.questions import Doubled, Hour, WhyNotFleet, saving
from rooflight.plan.serving.fleet.search import FleetPlan
from rooflight.ui.text.table import table
from rooflight.units import format_seconds, format_si


@dataclass(frozen=True, slots=True)
class FleetPage:
    """The answer, and what it was asked of."""

    model: str  # as it was named
    plan: FleetPlan
    verdict: PolicyComparison | None
    doubled: tuple[Doubled, ...]
    hours: tuple[Hour, ...]
    why_not: WhyNotFleet | None


def text(page: FleetPage) -> str:
    """The fleet in a line, then why it can be believed, then the others."""
    best = page.plan.best
    if best is None:
        return f"no fleet serves {page.model} so: {page.plan.question.demand}\n{_searched(page)}"
    parts = [
        f"{best}: {_many(best.num_chips, 'chip')}, ${best.dollars_per_hour:,.2f} an hour\n"
        f"{page.model}, {best.way.setup.precision}; {page.plan.question.demand}",
        _latencies(best),
        "\n".join(
            [
                _cost(best),
                _needs(best),
                _physics(best),
                _simulated(best),
                trust(best.way.calibration),
                *_first_token(best),
                *_evidence(page),
            ]
        ),
    ]
    if len(page.plan.found) > 1:
        parts.append(_chips(page))
    if page.verdict:
        parts.append(_verdict(page.verdict))
    if page.doubled:
        parts.append(_doubled(page.doubled, best))
    if page.why_not:
        parts.append(_why_not(page.why_not, best))
    if page.hours:
        parts.append(_hours(page.hours))
    return "\n\n".join([*parts, _searched(page)])


def _latencies(fleet: Fleet) -> str:
    rows = [
        [name, format_seconds(s) if s else "-", *map(format_seconds, (least, q.p50, q.p95, q.p99))]
        for name, s, least, q in fleet.latencies
    ]
    return table(("", "SLO", "floor", "p50", "p95", "p99"), rows, align="lrrrrr")


def _cost(fleet: Fleet) -> str:
    cached = fleet.dollars_per_million_cached
    rest = "" if cached is None else f", ${cached:.3f} cached"
    return (
        f"cost: ${fleet.dollars_per_million_in:.3f} a million tokens in{rest},"
        f" ${fleet.dollars_per_million_out:.3f} out; ${fleet.dollars_per_million:.3f} of all"
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
        f" {_many(found.replicas, 'replica')}{part}{broken}; {found.busy_share:.0%} busy,"
        f" {found.mean_rows:.0f} rows per step"
    )


def _first_token(fleet: Fleet) -> Iterator[str]:
    """What times to the first token rest on, and what the SLO is held to for it."""
    known, ttft_s = fleet.way.first_token, fleet.demand.slo.ttft_s
    if fleet.way.calibration and not known:
        yield "TTFT: too few measured it on such chips; prompts are priced as they slow tokens"
    elif known:
        held = format_seconds(fleet.way.held(fleet.demand.slo).ttft_s)
        slo = f": {held} predicted keeps an SLO of {format_seconds(ttft_s)}"
        yield trust(known, "TTFT") + (slo if ttft_s < math.inf else "")


def _evidence(page: FleetPage) -> Iterator[str]:
    """What of the layout nobody measured, or which such layout could be cheaper."""
    best = page.plan.best
    if best and best.way.unseen:
        what = ", ".join(best.way.unseen)
        yield (
            f"extrapolates: fewer than two measured rows have {what}, so it had to be"
            f" x{best.way.doubt:.2f} cheaper than others to come first"
        )
    new = best and page.plan.found[best.way.setup.on.chip.name].untried
    if best and new:
        dollars = (new.least_replicas + best.spare) * new.dollars
        yield (
            f"worth measuring: {new.setup.on} {new.setup.layout} could cost ${dollars:,.2f} an hour"
            f" at least, but fewer than two measured rows have {', '.join(new.unseen)}"
        )


def _chips(page: FleetPage) -> str:
    """The best of each chip; steps that are off by the bar of a calibration move its dollars."""
    header = ("chip", "fleet", "chips", "$/h", "$/M in", "$/M out", "TTFT p95", "TPOT p95", "")
    rows = [
        [chip, *_cells(search.best), verdict(search.best, page.plan.best)]
        for chip, search in page.plan.found.items()
    ]
    return table(header, rows, align="llrrrrrrl", keep=("fleet", "chip", "$/h", ""))


def verdict(fleet: Fleet | None, best: Fleet | None) -> str:
    """Cheapest, tied with it by its bar, or dearer; two without a bar cannot be told to tie."""
    if fleet is None or best is None:
        return "-"
    if fleet is best:
        return "cheapest"
    known = (fleet.way.calibration, best.way.calibration)
    bar = sum(one.spread for one in known if one)
    return "tied" if fleet.dollars_per_hour <= best.dollars_per_hour * math.exp(bar) else "dearer"


def _cells(fleet: Fleet | None) -> list[str]:
    if fleet is None:
        return ["none meets the SLO", *["-"] * 6]
    found = fleet.simulation
    return [
        str(fleet),
        f"{fleet.num_chips:,}",
        f"{fleet.dollars_per_hour:,.2f}",
        f"{fleet.dollars_per_million_in:.3f}",
        f"{fleet.dollars_per_million_out:.3f}",
        *(format_seconds(q.p95) if q else "-" for q in (found.ttft, found.tpot)),
    ]


def _verdict(verdict: PolicyComparison) -> str:
    better = "disaggregate prefill" if verdict.is_faster else "do not disaggregate prefill"
    isl, rate = verdict.input_flip, verdict.bandwidth_flip
    prompts = "at no prompt length in sight" if isl is None else f"at {isl:,.0f} prompt tokens"
    speed = "at no bandwidth in sight" if rate is None else f"at {format_si(rate, 'B/s')}"
    return (
        f"{better}: in smooth traffic a replica serves {verdict.gain:.2f}x the requests"
        f" ({verdict.together:.3g}/s together, {verdict.disaggregated:.3g}/s disaggregated)\n"
        f"it flips {prompts}, {speed} between replicas"
    )


def _doubled(doubled: tuple[Doubled, ...], best: Fleet) -> str:
    words = {"rate": "rate", "input": "prompts", "output": "answers"}
    lines: list[str] = []
    for one in doubled:
        fleet = one.fleet
        if fleet is None:
            lines.append(f"{words[one.what]} x2: no fleet meets the SLO")
            continue
        more = fleet.dollars_per_hour / best.dollars_per_hour - 1
        lines.append(f"{words[one.what]} x2: {fleet}, {more:+.0%} dollars")
    return "\n".join(lines)


def _why_not(asked: WhyNotFleet, best: Fleet) -> str:
    fleet = asked.fleet
    if fleet is None:
        return f"why not {asked.layout}: {asked.because}"
    more = fleet.dollars_per_hour / best.dollars_per_hour - 1
    return f"why not {asked.layout}: {fleet}, {more:+.0%} dollars; {asked.because}"


def _hours(hours: tuple[Hour, ...]) -> str:
    rows = [
        [str(i), f"{h.rate:g}", str(h.fleet.replicas), f"{h.fleet.dollars_per_hour:,.2f}"]
        for i, h in enumerate(hours)
    ]
    listed = table(("hour", "requests/s", "replicas", "$/h"), rows)
    total = sum(hour.fleet.dollars_per_hour for hour in hours)
    return (
        f"{listed}\nfollowing the rate: ${total:,.2f} in {len(hours)} hours, {saving(hours):.0%}"
        " less than the peak's fleet all the time"
    )


def _searched(page: FleetPage) -> str:
    ways = sum(search.num_ways for search in page.plan.found.values())
    simulations = sum(search.num_simulations for search in page.plan.found.values())
    tried = f"{ways:,} ways to serve on {_many(len(page.plan.found), 'kind')} of chip"
    return f"{tried}, {simulations:,} simulations"


def _many(count: int, thing: str) -> str:
    return f"{count:,} {thing}" if count == 1 else f"{count:,} {thing}s"

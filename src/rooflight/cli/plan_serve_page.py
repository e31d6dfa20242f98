"""What `rooflight plan serve` shows: the fleet, its latencies and cost, other chips beside it."""

import math
from dataclasses import dataclass

from rooflight.plan.serving.fleet.disaggregate import PolicyComparison
from rooflight.plan.serving.fleet.plan import Doubled, Fleet, Hour, WhyNotFleet, saving
from rooflight.plan.serving.fleet.search import FleetPlan
from rooflight.ui.answers.serving import fleet_answer, searched
from rooflight.ui.text.answer import answer_text
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
        none = answer_text(fleet_answer(page.model, page.plan))
        return f"{none}\n{searched(page.plan)}"
    parts = [answer_text(fleet_answer(page.model, page.plan))]
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
    return "\n\n".join([*parts, searched(page.plan)])


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

"""What `rooflight plan --tokens` adds: the whole run at the pace of the plan."""

from dataclasses import asdict

from rooflight.cli.budget_page import run_document, short
from rooflight.plan.run_cost import CONVENTION, Checkpoints, RunCost

_HOUR_S = 3600.0


def run_cost_text(cost: RunCost) -> str:
    """Days, dollars, energy; then failures and what they cost."""
    budget = cost.budget
    dollars = "unknown" if budget.dollars is None else f"${short(budget.dollars)}"
    return "\n".join(
        [
            f"{short(cost.tokens)} tokens: {short(budget.days)} days, price {dollars},"
            f" {short(budget.petaflop_days)} PF-days, {short(budget.chip_hours)} chip-hours,"
            f" {short(budget.kwh)} kWh, {short(cost.steps)} steps",
            _failures(cost),
            _goodput(cost, cost.checkpoints),
        ]
    )


def _failures(cost: RunCost) -> str:
    rate = cost.failure_rate
    hours = cost.between_failures_s / _HOUR_S
    assumed = f" ASSUMED to hold for {cost.budget.terms.on.chip.title}:" if cost.is_assumed else ""
    return (
        f"failures: {short(cost.budget.expected_failures)} expected, one every {short(hours)}"
        f" hours;{assumed} {rate.interruptions} in {rate.days:g} days on {rate.chips:,}"
        f" {rate.chip}, {rate.source.url}"
    )


def _goodput(cost: RunCost, checkpoints: Checkpoints | None) -> str:
    if checkpoints is None:
        return "goodput: unknown; give --checkpoint-s, the seconds that a checkpoint stops the run"
    if checkpoints.goodput is None or cost.days_with_failures is None:
        return "goodput: failures come too often for checkpoints this slow"
    started = "" if checkpoints.restart_s is not None else "; restarts are not counted"
    return (
        f"goodput: {checkpoints.goodput:.1%} with a checkpoint every"
        f" {short(checkpoints.interval_s / 60)} minutes, {short(cost.days_with_failures)} days"
        f" in all{started}"
    )


def run_cost_document(cost: RunCost) -> dict[str, object]:
    """The keys of `rooflight budget`, and what failures do."""
    points, rate = cost.checkpoints, cost.failure_rate
    return {
        "question": "tokens",
        "tokens": cost.tokens,
        "steps": cost.steps,
        **run_document({CONVENTION: cost.budget}, cost.budget.terms),
        "failure_source": asdict(rate.source),
        "is_failure_rate_assumed": cost.is_assumed,
        "between_failures_s": cost.between_failures_s,
        "checkpoint_interval_s": points.interval_s if points else None,
        "goodput": points.goodput if points else None,
        "days_with_failures": cost.days_with_failures,
    }

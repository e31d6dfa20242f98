"""What `rooflight plan --tokens` adds: the whole run at the pace of the plan."""

from dataclasses import asdict

from rooflight.cli.budget_page import run_document, short
from rooflight.plan.training.questions.run_cost import CONVENTION, CheckpointCost, RunCost

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
            goodput_text(cost),
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


def goodput_text(cost: RunCost) -> str:
    """What failures leave of the time, and the run with them."""
    days, hours = cost.days_with_failures, cost.chip_hours_with_failures
    if cost.goodput is None or days is None or hours is None:
        return "goodput: failures come too often for checkpoints this slow"
    return (
        f"goodput: {cost.goodput:.1%} {_because(cost, cost.checkpoints)}: {short(days)} days,"
        f" {short(hours)} chip-hours in all"
    )


def _because(cost: RunCost, checkpoints: CheckpointCost | None) -> str:
    if checkpoints is None:
        rate = cost.failure_rate
        return (
            f"(more than {rate.goodput:.0%} was reported on {rate.chips:,} {rate.chip}; losses grow"
            " with the square root of the chips)"
        )
    started = "" if checkpoints.restart_s is not None else ", restarts not counted"
    return f"with a checkpoint every {short(checkpoints.interval_s / 60)} minutes{started}"


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
        "goodput": cost.goodput,
        "days_with_failures": cost.days_with_failures,
        "chip_hours_with_failures": cost.chip_hours_with_failures,
    }

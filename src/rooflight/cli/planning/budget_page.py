"""What `rooflight budget` shows: runs, splits of a budget, and where price and power are from."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from rooflight.cli.output import picked
from rooflight.hardware.chip import Source
from rooflight.models.scaling_laws import load_scaling_laws
from rooflight.plan.training.questions.budget import Allocation, Budget, Terms
from rooflight.plan.training.questions.run_cost import CONVENTION, CheckpointCost, RunCost
from rooflight.ui.text.table import table
from rooflight.units import format_count, format_si

_HOUR_S = 3600.0

_UNKNOWN = "unknown"
_COLUMNS = ("FLOPs by", "FLOPs", "PF-days", "days", "chip-hours", "dollars", "kWh", "failures")


def run_document(budgets: Mapping[str, Budget], terms: Terms) -> dict[str, object]:
    """Runs by convention, and the terms they share."""
    source = terms.price_source
    return {
        "on": str(terms.on),
        "num_chips": terms.on.num_chips,
        **picked(terms, "dtype mfu dollars_per_chip_hour"),
        "price_source": asdict(source) if source else None,
        "watts_per_chip": terms.on.chip.watts,
        "mtbf_hours": terms.mtbf_hours,
        "runs": [{"convention": name, **_numbers(b)} for name, b in budgets.items()],
    }


def _numbers(budget: Budget) -> dict[str, float | None]:
    return {
        **picked(budget, "flops petaflop_days days chip_hours dollars kwh expected_failures"),
    }


def spending_document(
    flops: float, found: Sequence[Allocation], budget: Budget | None
) -> dict[str, object]:
    """Every split of a budget, and what it takes where the terms are known."""
    splits = [asdict(a) | {"tokens_per_param": a.tokens_per_param} for a in found]
    rest = {} if budget is None else run_document({"6ND": budget}, budget.terms)
    return {"flops": flops, "allocations": splits, **rest}


def run_text(title: str, budgets: Mapping[str, Budget], terms: Terms) -> str:
    """The answer by the first convention, then all of them, then where price and power are from."""
    first = next(iter(budgets.values()))
    chips = f"{format_count(terms.on.num_chips)} x {terms.on.chip.title}"
    price = _UNKNOWN if first.dollars is None else f"${_money(first.dollars)}"
    rows = [
        (name, f"{b.flops:.3g}", *(short(n) for n in list(_numbers(b).values())[1:]))
        for name, b in budgets.items()
    ]
    columns = _COLUMNS if terms.mtbf_hours else _COLUMNS[:-1]
    shown = [row[: len(columns)] for row in rows]
    peak = format_si(terms.on.chip.peak_flops(terms.dtype), "FLOP/s")
    use = f"{terms.mfu * 100:.4g}% of {peak} per chip ({terms.dtype})"
    return (
        f"{title}: {short(first.days)} days on {chips}, price {price}\n"
        f"on {terms.on} at {use}; an MFU belongs to the way its FLOPs are counted\n\n"
        f"{table(columns, shown, align='l' + 'r' * (len(columns) - 1))}\n\n"
        f"{_price_line(terms)}\n{_power_line(terms)}{_failure_line(terms)}"
    )


def _price_line(terms: Terms) -> str:
    dollars = terms.dollars_per_chip_hour
    if dollars is None:
        return f"price: {_UNKNOWN}, the catalog has none for {terms.on.chip.title}; give --price"
    where = _where(terms.price_source) if terms.price_source else "as given"
    return f"price: {dollars:g} dollars per chip-hour, {where}"


def _power_line(terms: Terms) -> str:
    chip = terms.on.chip
    if chip.watts is None:
        return f"power: {_UNKNOWN}, the catalog has none for {chip.title}"
    source = chip.source_of("watts")
    where = f", {_where(source)}" if source else ""
    return f"power: {chip.watts:g} W a chip without hosts, network and cooling{where}"


def _failure_line(terms: Terms) -> str:
    if terms.mtbf_hours is None:
        return ""
    between = f"{terms.mtbf_hours:,.0f} hours between failures of a chip"
    return f"\nfailures: {between}, as given; what restarts take is not in the days"


def _where(source: Source) -> str:
    return f"{source.title}, {source.url} ({source.checked})"


def spending_text(flops: float, found: Sequence[Allocation], budget: Budget | None) -> str:
    """The split to believe first, then all, then what the budget takes."""
    best, known = found[0], load_scaling_laws()
    laws = [law.name for law in known.laws]
    rows = [
        (a.by, short(a.params), short(a.tokens), short(a.tokens_per_param), *_losses(a, laws))
        for a in found
    ]
    header = ("split by", "params", "tokens", "tokens/param", *(f"loss, {name}" for name in laws))
    parts = [
        f"{flops:.3g} FLOPs: {short(best.params)} parameters on {short(best.tokens)} tokens,"
        f" by the {best.by}\n{_range_line(found)}",
        table(header, rows, align="l" + "r" * (len(header) - 1)),
        "\n".join(f"{a.by}: {_where(a.source)}" for a in found),
    ]
    if budget is not None:
        parts.append(run_text("the budget", {"6ND": budget}, budget.terms))
    return "\n\n".join(parts)


def _losses(split: Allocation, laws: Sequence[str]) -> list[str]:
    return [f"{split.losses[name]:.4f}" for name in laws]


def _range_line(found: Sequence[Allocation]) -> str:
    fitted = load_scaling_laws().fitted
    runs = (
        f"runs of {short(fitted.min_params)} to {short(fitted.max_params)} parameters"
        f" on {short(fitted.min_tokens)} to {short(fitted.max_tokens)} tokens"
    )
    if any(a.is_extrapolated for a in found):
        return f"extrapolated: the laws are fitted to {runs}"
    return f"within what the laws are fitted to: {runs}"


def short(value: float | None) -> str:
    """Three digits and a prefix, or that it is unknown."""
    return _UNKNOWN if value is None else format_si(value, "").rstrip()


def _money(dollars: float) -> str:
    return f"{dollars:,.0f}" if dollars < 1e6 else short(dollars)


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
        **picked(cost, "goodput days_with_failures chip_hours_with_failures"),
    }

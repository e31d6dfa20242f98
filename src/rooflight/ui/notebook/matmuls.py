"""Matmuls and collectives as HTML: the steps of a strategy, their times, what lost."""

from rooflight.algebra.contract import Strategy, strategies
from rooflight.algebra.notation import Contraction
from rooflight.costs.choose import Choice, Price, StepPrice
from rooflight.costs.network import NetworkTime
from rooflight.costs.roofline import OpTime
from rooflight.ui.html.page import Grid, bullets, grid, paragraph
from rooflight.ui.notebook.frame import framed
from rooflight.units import format_seconds, format_si


def contraction_html(contraction: Contraction) -> str:
    """What it could do: a line for each strategy."""
    ways = strategies(contraction)
    rows = tuple((str(i), "; ".join(map(str, way.steps))) for i, way in enumerate(ways, start=1))
    table = grid(Grid(f"{len(ways)} ways to compute it", ("", "steps"), rows, "rw"))
    return framed(str(contraction), table)


def strategy_html(strategy: Strategy) -> str:
    return framed(str(strategy.contraction), bullets([str(step) for step in strategy.steps]))


def price_html(price: Price) -> str:
    """Each step with its time and what binds it."""
    bounds = f"between {format_seconds(price.lower_s)} and {format_seconds(price.upper_s)}"
    heading = f"{price.strategy.contraction}: {format_seconds(price.expected_s)}, {price.summary}"
    return framed(heading, paragraph(bounds), _steps(price))


def choice_html(choice: Choice) -> str:
    """The best, and the others in order of their price."""
    best = choice.best
    heading = f"{best.strategy.contraction}: {format_seconds(best.expected_s)}, {best.summary}"
    rows = tuple(
        (
            f"{price.expected_s / best.expected_s:.2f}x",
            format_seconds(price.expected_s),
            format_si(price.network_bytes, "B"),
            price.summary,
        )
        for price in choice.losers
    )
    header = ("lost by", "time", "collectives", "alternative")
    lost = [grid(Grid("what lost", header, rows, "rrrl"))] if rows else []
    return framed(heading, _steps(best), paragraph(f"why: {choice.because}"), *lost)


def _steps(price: Price) -> str:
    header = ("step", "time", "moves or computes", "bound by")
    return grid(Grid("steps", header, tuple(map(_step, price.steps)), "lrrl"))


def _step(step: StepPrice) -> tuple[str, ...]:
    amount = format_si(step.flops, "FLOP") if step.op else format_si(step.nbytes, "B")
    return str(step.step), format_seconds(step.expected_s), amount, step.binds


def network_html(time: NetworkTime) -> str:
    """The bounds of a collective."""
    rows = tuple(
        (name, format_seconds(value))
        for name, value in (
            ("expected", time.expected_s),
            ("lower", time.lower_s),
            ("upper", time.upper_s),
        )
    )
    heading = f"{format_seconds(time.expected_s)}, bound by {time.binds}"
    return framed(heading, grid(Grid("bounds", ("bound", "time"), rows, "lr")))


def op_html(op: OpTime) -> str:
    """What an operation needs of each roof."""
    rows = tuple((roof.name, format_seconds(roof.seconds)) for roof in op.roofs)
    heading = f"{format_seconds(op.lower_s)}, bound by {op.binds}"
    return framed(heading, grid(Grid("roofs", ("roof", "time"), rows, "lr")))

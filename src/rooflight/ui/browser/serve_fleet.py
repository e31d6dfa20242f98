"""Serve, what takes longer: the cheapest fleet for a traffic, as `rooflight plan serve` has it."""

import math

from rooflight.errors import UsageError
from rooflight.hardware.calibration import ANY
from rooflight.hardware.slice import Slice
from rooflight.plan.serving.fleet.demand import Demand
from rooflight.plan.serving.fleet.plan import Fleet
from rooflight.plan.serving.fleet.search import FleetPlan, FleetQuestion, plan_fleet
from rooflight.plan.serving.fleet.way import FLEET_POLICIES
from rooflight.plan.serving.simulate.arrivals import parse_lengths
from rooflight.plan.serving.simulate.setup import SchedulerLimits
from rooflight.plan.serving.simulate.tally import Slo
from rooflight.plan.serving.step.layout import parse_serving_layout
from rooflight.plan.serving.step.precision import parse_precision
from rooflight.ui.answer import Answer, Column, Fact, Table, show_dollars, show_seconds
from rooflight.ui.browser.serve import FIELDS, ServeInputs, answer, ask
from rooflight.ui.browser.view import Field, View, ViewQuery

_REQUESTS = 1000  # simulated at a time: a page waits for them
_SPARE = 1
_LONGEST = 200_000  # tokens of a prompt or of an answer


def more(question: ViewQuery) -> Answer:
    """The fleet, or a word that none was asked for."""
    if not question.text("rate"):
        return Answer(("Give a rate of requests to see the cheapest fleet that serves it.",))
    asked, demand = ask(question), _demand(question)
    found = _search(question, asked, demand)
    command = _command(question)
    searches = found.found.values()
    if found.best is None:
        words = f"No fleet of these slices serves it so: {demand}."
        return Answer((words,), command=command)
    fleet = found.best
    return Answer(
        sentences=(
            f"{fleet}: {fleet.num_chips:,} chips, ${fleet.dollars_per_hour:,.2f} per hour",
            f"{demand}. {_needs(fleet)}",
            f"{sum(s.num_ways for s in searches)} ways to serve,"
            f" {sum(s.num_simulations for s in searches)} simulations of"
            f" {_REQUESTS:,} requests; {fleet.simulation.good_share:.1%} met the SLO.",
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
        command=command,
    )


def _demand(question: ViewQuery) -> Demand:
    lengths = {name: parse_lengths(question.text(name), what=name) for name in ("isl", "osl")}
    if max(one.mean for one in lengths.values()) > _LONGEST:
        raise UsageError(
            f"requests of more than {_LONGEST:,} tokens take too long to simulate here",
            hint="ask for shorter ones, or use `rooflight plan serve`",
        )
    text = question.text
    slo = Slo(
        question.seconds("ttft") if text("ttft") else math.inf,
        question.seconds("tpot") if text("tpot") else math.inf,
    )
    return Demand(
        question.number("rate"), lengths["isl"], lengths["osl"], slo, num_requests=_REQUESTS
    )


def _search(question: ViewQuery, asked: ServeInputs, demand: Demand) -> FleetPlan:
    layout, slices = question.text("layout"), dict[str, list[Slice]]()
    for on in asked.slices:
        slices.setdefault(on.chip.name, []).append(on)
    return plan_fleet(
        FleetQuestion(
            asked.model,
            demand,
            slices,
            parse_precision(question.text("dtypes")),
            {} if asked.price is None else dict.fromkeys(slices, asked.price),
            FLEET_POLICIES,
            [parse_serving_layout(layout)] if layout else (),
            ANY,
            SchedulerLimits(),
            _SPARE,
        )
    )


def _needs(fleet: Fleet) -> str:
    bound, rate = fleet.way.bound, fleet.demand.rate
    first = "prompts" if bound.prefill_s > bound.generate_s else "tokens"
    return (
        f"What binds: {first}; prompts need {rate * bound.prefill_s:.2f} replicas, tokens"
        f" {rate * bound.generate_s:.2f}."
    )


def _latencies(fleet: Fleet) -> Table:
    columns = (
        Column("latency", ""),
        *(Column(f"{n}_s", n, show_seconds) for n in ("slo", "floor", "p50", "p95", "p99")),
    )
    rows = tuple((*known, q.p50, q.p95, q.p99) for *known, q in fleet.latencies)
    return Table("latencies", "Simulated latencies of requests", columns, rows)


def _command(question: ViewQuery) -> str:
    text = question.text
    flags = {"ttft": "--ttft", "tpot": "--tpot", "layout": "--layout"}
    rest = "".join(f" {flag} {text(name)}" for name, flag in flags.items() if text(name))
    chips = dict.fromkeys(word.strip().partition(":")[0] for word in text("on").split(","))
    if text("price"):
        rest += "".join(f" --price {chip}={text('price')}" for chip in chips)
    return (
        f"rooflight plan serve {text('model')} --rate {text('rate')} --isl {text('isl')} --osl"
        f" {text('osl')} --on {text('on')} --dtypes {text('dtypes')} --requests {_REQUESTS}{rest}"
    )


VIEW = View(
    "serve",
    "Serve",
    "Latency, throughput and cost of a served model, what binds a step, and the fleet it takes.",
    (
        *FIELDS,
        Field(
            *("rate", "Requests per second", "number", "", "for a fleet"),
            least=0.001,
            most=1e5,
            is_optional=True,
        ),
        Field("isl", "Prompt tokens", "text", "1024", "1024, 1024~0.5, 100..2000 or exp:1024"),
        Field("osl", "New tokens", "text", "256", "in the same words"),
        Field(
            *("ttft", "SLO of first token", "time", "1s"),
            least=1e-6,
            most=1e4,
            is_optional=True,
        ),
    ),
    answer,
    more,
)

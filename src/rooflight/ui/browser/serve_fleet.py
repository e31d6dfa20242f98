"""Serve, what takes longer: the cheapest fleet for a traffic, as `rooflight plan serve` has it."""

import math
from dataclasses import replace

from rooflight.errors import UsageError
from rooflight.hardware.calibration import ANY
from rooflight.hardware.slice import Slice
from rooflight.plan.serving.fleet.demand import Demand
from rooflight.plan.serving.fleet.search import FleetPlan, FleetQuestion, plan_fleet
from rooflight.plan.serving.fleet.way import FLEET_POLICIES, hourly_prices
from rooflight.plan.serving.simulate.arrivals import parse_lengths
from rooflight.plan.serving.simulate.setup import SchedulerLimits
from rooflight.plan.serving.simulate.tally import Slo
from rooflight.plan.serving.step.layout import parse_precision, parse_serving_layout
from rooflight.ui.answer import Answer
from rooflight.ui.answers.serving import fleet_answer, searched
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
    whole = fleet_answer(question.text("model"), found)
    return replace(whole, sentences=(*whole.sentences, searched(found)), command=_command(question))


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
            hourly_prices({} if asked.price is None else dict.fromkeys(slices, asked.price)),
            FLEET_POLICIES,
            [parse_serving_layout(layout)] if layout else (),
            ANY,
            SchedulerLimits(),
            _SPARE,
        )
    )


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
            *("ttft", "SLO of first token", "time", "1s"), least=1e-6, most=1e4, is_optional=True
        ),
    ),
    answer,
    more,
)

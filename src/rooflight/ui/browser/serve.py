"""Serve: latency against throughput against cost, as `rooflight frontier` finds it.

`more` has what takes longer: the fleet for a traffic, as `rooflight plan serve` has it.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from rooflight.errors import UsageError
from rooflight.hardware.calibration import ANY
from rooflight.hardware.slice import Slice, parse_slice
from rooflight.models.presets import model_names
from rooflight.models.spec import ModelSpec
from rooflight.plan.serving.fleet.demand import Demand
from rooflight.plan.serving.fleet.frontier import BOUNDS, Bound, Point, curves, frontier
from rooflight.plan.serving.fleet.search import FleetPlan, FleetQuestion, plan_fleet
from rooflight.plan.serving.fleet.way import FLEET_POLICIES, hourly_prices
from rooflight.plan.serving.simulate.arrivals import parse_lengths
from rooflight.plan.serving.simulate.engine_sizes import AskedSizes
from rooflight.plan.serving.simulate.tally import Slo
from rooflight.plan.serving.step.derive_model import serving_model
from rooflight.plan.serving.step.layout import parse_serving_layout, precision_of
from rooflight.plan.serving.step.memory import ServingMemory
from rooflight.ui.answer import Answer, Column, Picture, Table, show_count
from rooflight.ui.answers.serving import fleet_answer, frontier_answer, searched, split_table
from rooflight.ui.browser.view import Field, View, ViewQuery
from rooflight.ui.svg.frontier import StepBreakdown, parts_svg
from rooflight.units import format_seconds

_MOST_SLICES, _MOST_CHIPS = 4, 1024
_LONGEST = 2**24
_LARGEST_BATCH = 65536
_CONTEXTS = tuple(2**n for n in range(8, 18))

FIELDS = (
    Field("model", "Model", "text", "llama3-8b", "a preset or a config.json", model_names()),
    Field(
        *("on", "Slices", "text", "v5e:2x4", "one, or several joined by commas"),
        ("v5e:2x4", "v5e:4x4", "v5e:4x4,v5e:2x4", "v6e:2x4", "v5p:2x2x2", "h100:8"),
    ),
    Field(
        *("dtypes", "Dtypes", "text", "", "weights[/cache[/matmuls]]; empty: as published"),
        ("bf16", "int8", "fp8"),
        is_optional=True,
    ),
    Field(
        *("context", "Context", "length", "4096", "positions of a sequence"),
        stops=tuple(str(n) for n in _CONTEXTS),
        most=_LONGEST,
    ),
    Field(
        *("batch", "Batch", "count", "32", "where the step is taken apart"),
        stops=tuple(str(2**n) for n in range(13)),
        most=_LARGEST_BATCH,
    ),
    Field("layout", "Layout", "text", "", "such as tp=8,kv=batch; empty: all", is_optional=True),
    Field(
        *("bound", "Time of a step", "choice", "expected"),
        help="expected, or a roofline bound: lower, matmuls (as the book draws it)",
        choices=BOUNDS,
    ),
    Field(
        *("price", "Dollars a chip-hour", "number", "", "empty: the catalog's"),
        least=0.001,
        most=1e5,
        is_optional=True,
    ),
    Field(
        *("tpot", "SLO of time per token", "time", "", "30ms: the cheapest point that keeps it"),
        least=1e-6,
        most=1e4,
        is_optional=True,
    ),
)


@dataclass(frozen=True, slots=True)
class ServeInputs:
    """The question, understood."""

    model: ModelSpec
    slices: tuple[Slice, ...]
    context: int
    bound: Bound
    price: float | None


def ask(question: ViewQuery) -> ServeInputs:
    words = question.text("on").split(",")
    if len(words) > _MOST_SLICES:
        raise UsageError(
            f"{len(words)} slices are more than a plot shows", hint=f"name at most {_MOST_SLICES}"
        )
    slices = tuple(parse_slice(word.strip()) for word in words)
    if max(on.num_chips for on in slices) > _MOST_CHIPS:
        raise UsageError(
            f"a replica of more than {_MOST_CHIPS} chips takes too long to look at",
            hint="ask for a smaller slice: a fleet has many replicas",
        )
    text = question.text("bound")
    bound: Bound = next(name for name in BOUNDS if name == text)
    price = question.number("price") if question.text("price") else None
    return ServeInputs(question.model("model"), slices, question.length("context"), bound, price)


def answer(question: ViewQuery) -> Answer:
    """The frontier, and what the step of one batch is spent on."""
    asked = ask(question)
    layout = question.text("layout")
    found = curves(
        asked.model,
        asked.slices,
        precisions=[precision_of(asked.model, question.text("dtypes") or None)],
        contexts=[asked.context],
        layouts=[parse_serving_layout(layout)] if layout else (),
        bound=asked.bound,
        engine=ANY if asked.bound == "expected" else None,
    )
    best = frontier(found, context=asked.context, price=asked.price)
    kept = _kept(question, best)
    said = frontier_answer(
        asked.model.title, asked.bound, found, best, price=asked.price, chosen=kept
    )
    parts = _parts_by_context(asked.model, best[kept], question.count("batch"))
    return replace(
        said,
        sentences=(said.sentences[0], *_within_slo(question, best[kept]), *said.sentences[1:]),
        pictures=(*said.pictures, *_context_picture(parts, question)),
        tables=(*said.tables, *_by_context(parts)),
        command=_command(question),
    )


def _kept(question: ViewQuery, best: Sequence[Point]) -> int:
    """The cheapest point that meets the SLO, if there is one: the last that is fast enough."""
    if not question.text("tpot"):
        return len(best) - 1
    slos = question.seconds("tpot")
    within = [i for i, point in enumerate(best) if point.step_s <= slos]
    if not within:
        raise UsageError(
            f"no batch takes less than {format_seconds(best[0].step_s)} per token here",
            hint=f"allow {format_seconds(best[0].step_s)} or more, or add chips",
        )
    return within[-1]


def _within_slo(question: ViewQuery, point: Point) -> Iterator[str]:
    if question.text("tpot"):
        yield (
            f"Within {question.text('tpot')} per token: batch {point.batch:,} on {point.config.on}"
            f" {point.config.layout}, {format_seconds(point.step_s)}."
        )


@dataclass(frozen=True, slots=True)
class _ContextSplit:
    """What a step of one batch is spent on, context by context."""

    label: str
    batch: int
    rows: tuple[tuple[int, dict[str, float]], ...]  # context, seconds by part

    @property
    def names(self) -> list[str]:
        return [n for n in self.rows[0][1] if any(parts[n] for _, parts in self.rows)]


def _parts_by_context(model: ModelSpec, point: Point, batch: int) -> _ContextSplit | None:
    """At every context that the chosen way still holds; None where it holds none."""
    config = point.config
    memory = ServingMemory(model, config.on, config.layout, config.precision)
    steps = serving_model(model, config.on, config.layout, config.precision)
    rows = tuple(
        (context, dict(steps.generate([context] * batch).parts))
        for context in _CONTEXTS
        if memory.most_sequences(context) >= batch
    )
    label = f"{config.on} {config.layout} {config.precision}, batch {batch:,}"
    return _ContextSplit(label, batch, rows) if rows else None


def _context_picture(split: _ContextSplit | None, question: ViewQuery) -> tuple[Picture, ...]:
    if split is None or len(split.rows) < 2:
        return ()
    lines = tuple(
        (n, tuple((float(context), parts[n]) for context, parts in split.rows)) for n in split.names
    )
    picture = parts_svg(
        "Weights, KV cache and FLOPs against the context",
        StepBreakdown(split.label, lines),
        across="positions of a sequence",
    )
    caption = (
        f"The roofline bound of each part of a step of {split.batch:,} sequences, up to the longest"
        " context whose caches fit."
    )
    return (Picture("context", picture, caption),)


def _by_context(split: _ContextSplit | None) -> Iterator[Table]:
    if split:
        caption = f"Parts of a step by context, {split.label}"
        rows = [(n, {name: parts[name] for name in split.names}) for n, parts in split.rows]
        positions = Column("context", "positions", show_count)
        yield split_table("by_context", caption, positions, rows)


def _command(question: ViewQuery) -> str:
    text = question.text
    given = {"dtypes": "--dtypes", "layout": "--layout", "price": "--price"}
    rest = "".join(f" {flag} {text(name)}" for name, flag in given.items() if text(name))
    bound = "" if text("bound") == "expected" else f" --bound {text('bound')}"
    return (
        f"rooflight frontier {text('model')} --on {text('on')} --context {text('context')}"
        f"{rest}{bound}"
    )


_REQUESTS = 1000  # simulated at a time: a page waits for them
_SPARE = 1
_LONGEST_TEXT = 200_000  # tokens of a prompt or of an answer


def more(question: ViewQuery) -> Answer:
    """The fleet, or a word that none was asked for."""
    if not question.text("rate"):
        return Answer(("Give a rate of requests to see the cheapest fleet that serves it.",))
    asked, demand = ask(question), _demand(question)
    found = _search(question, asked, demand)
    whole = fleet_answer(question.text("model"), found)
    return replace(
        whole, sentences=(*whole.sentences, searched(found)), command=_fleet_command(question)
    )


def _demand(question: ViewQuery) -> Demand:
    lengths = {name: parse_lengths(question.text(name), what=name) for name in ("isl", "osl")}
    if max(one.mean for one in lengths.values()) > _LONGEST_TEXT:
        raise UsageError(
            f"requests of more than {_LONGEST_TEXT:,} tokens take too long to simulate here",
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
            precision_of(asked.model, question.text("dtypes") or None),
            hourly_prices({} if asked.price is None else dict.fromkeys(slices, asked.price)),
            FLEET_POLICIES,
            [parse_serving_layout(layout)] if layout else (),
            ANY,
            AskedSizes(),
            _SPARE,
        )
    )


def _fleet_command(question: ViewQuery) -> str:
    text = question.text
    flags = {"dtypes": "--dtypes", "ttft": "--ttft", "tpot": "--tpot", "layout": "--layout"}
    rest = "".join(f" {flag} {text(name)}" for name, flag in flags.items() if text(name))
    chips = dict.fromkeys(word.strip().partition(":")[0] for word in text("on").split(","))
    if text("price"):
        rest += "".join(f" --price {chip}={text('price')}" for chip in chips)
    return (
        f"rooflight plan serve {text('model')} --rate {text('rate')} --isl {text('isl')} --osl"
        f" {text('osl')} --on {text('on')} --requests {_REQUESTS}{rest}"
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

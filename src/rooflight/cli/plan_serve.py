"""`rooflight plan serve`: the cheapest fleet that serves a model's traffic as promised."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from rooflight.cli.model import warn_of_gaps
from rooflight.cli.output import print_json, show, suggest
from rooflight.cli.parser import Namespace, Parser
from rooflight.cli.plan_serve_flags import (
    add_hardware,
    add_serving_questions,
    add_traffic,
    demand_of,
    prices_of,
    rates_of,
    sizes_of,
    spares_of,
)
from rooflight.cli.plan_serve_json import document
from rooflight.cli.plan_serve_page import FleetPage, text
from rooflight.cli.progress import progress
from rooflight.cli.serving_flags import engine_of
from rooflight.errors import UsageError
from rooflight.hardware.catalog import chip_names, find_chip, load_chip
from rooflight.hardware.slice import Slice, parse_slice
from rooflight.models.presets import load_model
from rooflight.models.spec import ModelSpec
from rooflight.plan.serving.fleet.demand import Demand
from rooflight.plan.serving.fleet.plan import Fleet, FleetSearch, cheapest_fleet
from rooflight.plan.serving.fleet.questions import (
    WhyNotFleet,
    doubled_demands,
    hourly_fleets,
    why_not,
)
from rooflight.plan.serving.fleet.separate import separate_or_not
from rooflight.plan.serving.fleet.way import FLEET_POLICIES, FleetPolicy, chip_slices, ways_to_serve
from rooflight.plan.serving.simulate.setup import SchedulerLimits
from rooflight.plan.serving.step.layout import ServingLayout, parse_serving_layout
from rooflight.plan.serving.step.precision import Precision, parse_precision

HELP = "the cheapest fleet that serves a model's traffic as promised, and what a token costs"


def configure(parser: Parser) -> None:
    add_traffic(parser)
    add_hardware(parser)
    add_serving_questions(parser)
    parser.set_examples(
        "rooflight plan serve llama3-8b --rate 20 --isl 1024 --osl 256 --ttft 1s --tpot 30ms"
        " --on v5e --dtypes int8",
        "rooflight plan serve llama3-70b --rate 20 --isl 1024~0.5 --osl 256 --ttft 1s --tpot 30ms"
        " --on v5e:2x4,h100:4 --dtypes int8 --price h100=3 --sensitivity",
    )


def run(args: Namespace) -> int:
    model = load_model(args.model)
    warn_of_gaps(model)
    asked = _ServeSearch(
        model,
        parse_precision(args.dtypes),
        prices_of(args.price or []),
        (args.policy,) if args.policy else FLEET_POLICIES,
        (parse_serving_layout(args.layout),) if args.layout else (),
        engine_of(args),
        sizes_of(args),
        spares_of(args),
    )
    demand, kinds = demand_of(args), _slices(args.on, asked)
    found = {chip: asked.search(slices, demand) for chip, slices in kinds.items()}
    if not any(search.num_ways for search in found.values()):
        raise UsageError(
            f"nothing holds {args.model} and a request of {demand.work().longest:,} positions",
            hint="give larger slices or smaller dtypes, fewer --rows, or leave out --layout",
        )
    fleets = [search.best for search in found.values() if search.best]
    best = min(fleets, key=lambda fleet: fleet.dollars_per_hour) if fleets else None
    page = FleetPage(args.model, demand, asked.spare, found, best)
    if best:
        slices = kinds[_chip(best)]
        page = _answers(args, page, best, lambda other: asked.search(slices, other))
        if args.why_not:
            page = replace(page, why_not=_why_not(args.why_not, asked, slices, best))
    if args.json:
        print_json("plan", document(page))
    else:
        show(text(page))
        if best:
            suggest(_next(args, best))
    return 0 if best else 1


@dataclass(frozen=True, slots=True)
class _ServeSearch:
    """Everything that a search needs but the traffic and the slices."""

    model: ModelSpec
    precision: Precision
    prices: Mapping[str, float]
    policies: Sequence[FleetPolicy]
    layouts: Sequence[ServingLayout]
    engine: str | None
    sizes: SchedulerLimits
    spare: int

    def search(self, slices: Sequence[Slice], demand: Demand) -> FleetSearch:
        ways = ways_to_serve(
            self.model,
            slices,
            demand,
            precisions=[self.precision],
            prices=self.prices,
            policies=self.policies,
            layouts=self.layouts,
            engine=self.engine,
            sizes=self.sizes,
        )
        with progress("ways to serve", "simulations") as watch:
            return cheapest_fleet(ways, demand, spare=self.spare, watch=watch)


def _answers(
    args: Namespace, page: FleetPage, best: Fleet, search: Callable[[Demand], FleetSearch]
) -> FleetPage:
    """What was asked beside the fleet."""
    verdict = separate_or_not(best.way.setup, page.demand, engine=engine_of(args))
    doubled = doubled_demands(page.demand, search) if args.sensitivity else ()
    hours = hourly_fleets(best, rates_of(args.hourly)) if args.hourly else ()
    return replace(page, verdict=verdict, doubled=doubled, hours=hours)


def _why_not(word: str, asked: _ServeSearch, slices: Sequence[Slice], best: Fleet) -> WhyNotFleet:
    """The same search with this layout alone, on the slices that it fills."""
    layout = parse_serving_layout(word)
    suits = [on for on in slices if on.num_chips == layout.num_chips] or list(slices)
    found = replace(asked, layouts=(layout,)).search(suits, best.demand)
    return why_not(best, layout, found, suits[-1])


def _chip(fleet: Fleet) -> str:
    return fleet.way.setup.on.chip.name


def _slices(on: str | None, asked: _ServeSearch) -> dict[str, list[Slice]]:
    """By chip: the slices that were named, or several sizes of a chip that was."""
    found: dict[str, list[Slice]] = {}
    for word in on.split(",") if on else _priced(asked.prices):
        chip = find_chip(word.strip())
        if chip is None:
            slices = [parse_slice(word)]
        else:
            slices = list(chip_slices(chip, asked.model, asked.precision))
            found.setdefault(chip.name, [])
        for one in slices:
            found.setdefault(one.chip.name, []).append(one)
    return found


def _priced(prices: Mapping[str, float]) -> list[str]:
    return [n for n in chip_names() if n in prices or load_chip(n).dollars_per_hour is not None]


def _next(args: Namespace, best: Fleet) -> str:
    """What the chosen slice does at other batches."""
    setup = best.way.setup
    words = ["--on", str(setup.on), "--layout", str(setup.layout), "--dtypes", args.dtypes]
    context = f"--context {best.demand.work().longest}"
    return " ".join(["rooflight frontier", shlex.quote(args.model), *words, context])

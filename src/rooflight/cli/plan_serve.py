"""`rooflight plan serve`: the cheapest fleet that serves a model's traffic within its SLO."""

import shlex

from rooflight.api.serving import plan_serving
from rooflight.cli.flags import keywords
from rooflight.cli.model import warn_of_gaps
from rooflight.cli.output import print_json, show, suggest
from rooflight.cli.parser import Namespace, Parser
from rooflight.cli.plan_serve_flags import (
    add_hardware,
    add_serving_questions,
    add_traffic,
    prices_of,
    rates_of,
)
from rooflight.cli.plan_serve_json import document
from rooflight.cli.plan_serve_page import FleetPage, text
from rooflight.cli.progress import progress
from rooflight.models.presets import load_model
from rooflight.plan.serving.fleet.plan import Fleet

HELP = "the cheapest fleet that serves a model's traffic within its SLO, and what a token costs"


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
    with progress("ways to serve", "simulations") as watch:
        asked = keywords(plan_serving, args, but=["prices", "watch"])
        prices = prices_of(args.price or [])
        plan = plan_serving(model, **asked, prices=prices, watch=watch)
        page = FleetPage(
            args.model,
            plan,
            plan.verdict,
            plan.doubled(watch) if args.sensitivity and plan.best else (),
            plan.hourly(rates_of(args.hourly)) if args.hourly else (),
            plan.why_not(args.why_not, watch) if args.why_not else None,
        )
    if args.json:
        print_json("plan", document(page))
    else:
        show(text(page))
        if plan.best:
            suggest(_next(args, plan.best))
    return 0 if plan.best else 1


def _next(args: Namespace, best: Fleet) -> str:
    """What the chosen slice does at other batches."""
    setup = best.way.setup
    words = ["--on", str(setup.on), "--layout", str(setup.layout), "--dtypes", args.dtypes]
    context = f"--context {best.demand.work().longest}"
    return " ".join(["rooflight frontier", shlex.quote(args.model), *words, context])

"""`rooflight plan serve`: the cheapest fleet that serves a model's traffic within its SLO."""

import math
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from rooflight.api.serving import plan_serving
from rooflight.cli.flags import add_choice, again, keywords
from rooflight.cli.output import picked, print_json, show, suggest
from rooflight.cli.parser import Namespace, Parser
from rooflight.cli.planning.model import warn_of_gaps
from rooflight.cli.progress import progress
from rooflight.cli.serving.hours import add_hours, asked_hours, hours_document, hours_text
from rooflight.cli.serving.serving_flags import (
    SERVED,
    SERVING_LAYOUT,
    add_dtypes,
    add_engine,
    add_features,
    add_sizes,
)
from rooflight.cli.serving.workloads import add_workloads, run_workloads
from rooflight.errors import UsageError
from rooflight.models.presets import load_model
from rooflight.plan.serving.fleet.cost import blocks_of
from rooflight.plan.serving.fleet.demand import Demand
from rooflight.plan.serving.fleet.disaggregate import PolicyComparison
from rooflight.plan.serving.fleet.evidence import disaggregated
from rooflight.plan.serving.fleet.hours import Hour
from rooflight.plan.serving.fleet.plan import Doubled, Fleet, WhyNotFleet
from rooflight.plan.serving.fleet.search import FleetPlan
from rooflight.plan.serving.fleet.way import FLEET_POLICIES
from rooflight.plan.serving.simulate.tally import Quantiles
from rooflight.ui.answers.serving import fleet_answer, searched
from rooflight.ui.text.answer import answer_text
from rooflight.ui.text.table import table
from rooflight.units import format_seconds, format_si

HELP = "the cheapest fleet that serves a model's traffic within its SLO, and what a token costs"


@dataclass(frozen=True, slots=True)
class FleetPage:
    """The answer, and what it was asked of."""

    model: str  # as it was named
    plan: FleetPlan
    verdict: PolicyComparison | None
    runner_up: Fleet | None  # of the same chip, where asked
    doubled: tuple[Doubled, ...]
    hours: tuple[Hour, ...]
    why_not: WhyNotFleet | None
    undrafted: Fleet | None = None  # of the same chip, without draft tokens, where asked


def configure(parser: Parser) -> None:
    add_traffic(parser)
    add_workloads(parser)
    add_hardware(parser)
    add_serving_questions(parser)
    parser.set_examples(
        "rooflight plan serve llama3-8b --rate 20 --isl 1024 --osl 256 --ttft 1s --tpot 30ms"
        " --on v5e --dtypes int8",
        "rooflight plan serve llama3-70b --rate 20 --isl 1024~0.5 --osl 256 --ttft 1s --tpot 30ms"
        " --on v5e:2x4,h100:4 --dtypes int8 --price h100=3 --sensitivity",
    )


def run(args: Namespace) -> int:
    if args.workloads:
        return run_workloads(args, prices_of(args.price or []))
    missing = [name for name in ("model", "rate", "isl", "osl") if not getattr(args, name)]
    if missing:
        words = ", ".join(name if name == "model" else f"--{name}" for name in missing)
        raise UsageError(
            f"the following arguments are required: {words}",
            hint="or give several models and their traffic by --workloads FILE",
        )
    model = load_model(args.model)
    warn_of_gaps(model)
    rates, cold_start_s = asked_hours(args)
    with progress("ways to serve", "simulations") as watch:
        asked = keywords(plan_serving, args, but=["prices", "classes", "watch"])
        prices = prices_of(args.price or [])
        plan = plan_serving(model, **asked, prices=prices, watch=watch)
        page = FleetPage(
            args.model,
            plan,
            plan.verdict,
            plan.runner_up(watch) if args.sensitivity else None,
            plan.doubled(watch) if args.sensitivity and plan.best else (),
            plan.hourly(rates, cold_start_s=cold_start_s) if rates else (),
            plan.why_not(args.why_not, watch) if args.why_not else None,
            plan.without_draft(watch) if args.sensitivity else None,
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
    words = ["--on", str(setup.on), "--layout", str(setup.layout), *again(args, ["dtypes"])]
    words += ["--context", str(best.demand.work().longest), *again(args, SERVED)]
    return shlex.join(["rooflight", "frontier", args.model, *words])


def add_traffic(parser: Parser) -> None:
    """What comes, and its SLO."""
    parser.add_argument(
        "model", nargs="?", help="a preset such as llama3-8b, or the path of a config.json"
    )
    parser.add_argument("--rate", help="requests per second")
    parser.add_argument(
        "--isl",
        help="prompt tokens: 1024, 1024~0.8 (lognormal), 100..2000 (uniform) or exp:1024",
    )
    parser.add_argument("--osl", help="new tokens, in the same words")
    parser.add_argument("--ttft", metavar="TIME", help="SLO of the time to first token: 1s")
    parser.add_argument("--tpot", metavar="TIME", help="SLO of the time per output token: 30ms")
    parser.add_argument(
        "--percentile", default="95", help="of requests that must get both (default 95)"
    )
    parser.add_argument(
        "--confidence",
        default="50",
        help="%% chance that each SLO is kept, by held-out errors: 50 (default) is the forecast,"
        " 90 the end of its interval",
    )
    parser.add_argument(
        "--hit-rate", default="0", help="of prompt tokens in the prefix cache: 0.5 (default 0)"
    )
    parser.add_argument("--burstiness", default="1", help="of arrivals: 1 (default) is Poisson")
    parser.add_argument("--requests", help="simulated at a time (default: as the SLO needs)")
    parser.add_argument("--seed", default="0", help="of the random traffic (default 0)")


def add_hardware(parser: Parser) -> None:
    """What it may run on, how, and at what price."""
    parser.add_argument(
        "--on",
        metavar="HARDWARE",
        help="chips, each in several sizes, or slices, joined by commas: v5e,h100 or v5e:2x4"
        " (default: every chip with a price)",
    )
    parser.add_argument("--layout", help=f"this layout only: {SERVING_LAYOUT}")
    add_dtypes(parser)
    parser.add_argument(
        "--price",
        action="append",
        metavar="PRICE",
        help="of a chip-hour: h100=2.50, again for another chip; or what a cloud asks by the"
        " catalog: gcp, aws/spot; or the middle one of the clouds: on-demand (default), spot",
    )
    parser.add_argument(
        "--spare", default="1", help="slices that may be broken meanwhile (default 1)"
    )
    add_choice(
        parser,
        "--policy",
        FLEET_POLICIES,
        help="replicas that do everything (continuous), or prefill or generate (disaggregated);"
        " whichever is cheaper if left out",
    )
    add_engine(parser)
    add_sizes(parser)
    add_features(parser)


def add_serving_questions(parser: Parser) -> None:
    """What else is asked."""
    parser.add_argument(
        "--sensitivity",
        action="store_true",
        help="also the runner-up, and the fleets for twice the rate or lengths, or without draft"
        " tokens",
    )
    parser.add_argument("--why-not", metavar="LAYOUT", help="what this layout would cost: tp=4")
    add_hours(parser)


def prices_of(words: Sequence[str]) -> dict[str, str]:
    """Dollars of a chip-hour by chip; without a chip, whose prices the others have."""
    split = (word.rpartition("=") for word in words)
    return {name: dollars for name, _, dollars in split}


def document(page: FleetPage) -> dict[str, object]:
    """The fleet, the best of every chip, and the answers to what else was asked."""
    fields: dict[str, object] = {
        "question": "serve",
        "model": page.model,
        **_demand(page.plan.question.demand),
        "fleet": _fleet(page.plan.best) if page.plan.best else None,
        "chips": {
            chip: _fleet(search.best) if search.best else None
            for chip, search in page.plan.found.items()
        },
        "verdicts": {
            chip: verdict(search.best, page.plan.best) for chip, search in page.plan.found.items()
        },
        "ways": sum(search.num_ways for search in page.plan.found.values()),
        "simulations": sum(search.num_simulations for search in page.plan.found.values()),
    }
    if page.verdict:
        fields["disaggregate"] = {"is_faster": page.verdict.is_faster, **asdict(page.verdict)}
    if page.runner_up:
        fields["runner_up"] = _fleet(page.runner_up)
    if page.undrafted:
        fields["without_draft"] = _fleet(page.undrafted)
    if page.doubled:
        fields["doubled"] = {d.what: _fleet(d.fleet) if d.fleet else None for d in page.doubled}
    if page.why_not:
        asked = page.why_not
        fields["why_not"] = {
            "layout": str(asked.layout),
            "because": asked.because,
            "fleet": _fleet(asked.fleet) if asked.fleet else None,
        }
    if page.hours:
        fields |= hours_document(page.hours)
    return fields


def _demand(demand: Demand) -> dict[str, object]:
    return {
        "rate": demand.rate,
        "isl": str(demand.input),
        "osl": str(demand.output),
        "hit_rate": demand.hit_rate,
        "percentile": demand.percentile,
        "confidence": demand.confidence,
        **demand.slo.document,
    }


def _fleet(fleet: Fleet) -> dict[str, object]:
    way, found = fleet.way, fleet.simulation
    setup, calibration, limits = way.setup, way.calibration, way.limits
    return {
        "on": str(setup.on),
        "layout": str(setup.layout),
        "dtypes": str(setup.precision),
        **setup.document,
        "policy": way.policy,
        **picked(fleet, "replicas prefill_replicas spare"),
        "chips": fleet.num_chips,
        **picked(limits, "max_rows max_step_tokens block_tokens pool_tokens"),
        "longest_request": fleet.demand.work().longest,
        "dollars_per_hour": fleet.dollars_per_hour,
        "dollars_per_million": fleet.dollars_per_million,
        "dollars_per_million_in": fleet.dollars_per_million_in,
        "dollars_per_million_cached": fleet.dollars_per_million_cached,
        "dollars_per_million_out": fleet.dollars_per_million_out,
        "least_replicas": way.least_replicas,
        "bound": asdict(way.bound),
        "physics_replicas": fleet.physics_replicas,
        "paid": fleet.paid,
        "calibration": f"{calibration.engine} on {calibration.chip}" if calibration else None,
        "spread": calibration.spread if calibration else None,
        "ttft_spread": way.first_token.spread if way.first_token else None,
        "chances": fleet.chances,
        "unseen": list(way.unseen),
        "simulated": {
            "replicas": found.replicas,
            "rate": fleet.simulated_rate,
            "requests": found.num_requests,
            **picked(found, "good_share busy_share mean_rows"),
            "floor": asdict(found.floor),
            "ttft": _quantiles(found.ttft),
            "tpot": _quantiles(found.tpot),
            "e2e": _quantiles(found.e2e),
        },
    }


def _quantiles(times: Quantiles | None) -> dict[str, float] | None:
    if times is None:
        return None
    return {"mean_s": times.mean, "p50_s": times.p50, "p95_s": times.p95, "p99_s": times.p99}


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
        parts.append(_verdict(page.verdict, best))
    if page.doubled:
        parts.append(_sensitivity(page, best))
    if page.why_not:
        parts.append(_why_not(page.why_not, best))
    if page.hours:
        parts.append(hours_text(page.hours))
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


def _verdict(verdict: PolicyComparison, best: Fleet) -> str:
    better = "disaggregate prefill" if verdict.is_faster else "do not disaggregate prefill"
    off = disaggregated(blocks_of(best.way.setup.model)) if best.way.calibration else 0.0
    known = ""
    if verdict.is_faster and verdict.gain < math.exp(off):
        better = "disaggregated prefill is worth measuring"
        known = f"; 80% of the rows that have it are within x{math.exp(off):.2f}"
    isl, rate = verdict.input_flip, verdict.bandwidth_flip
    prompts = "at no prompt length in sight" if isl is None else f"at {isl:,.0f} prompt tokens"
    speed = "at no bandwidth in sight" if rate is None else f"at {format_si(rate, 'B/s')}"
    return (
        f"{better}: in smooth traffic a replica serves {verdict.gain:.2f}x the requests"
        f" ({verdict.together:.3g}/s together, {verdict.disaggregated:.3g}/s disaggregated){known}"
        f"\nit flips {prompts}, {speed} between replicas"
    )


def _sensitivity(page: FleetPage, best: Fleet) -> str:
    words = {"rate": "rate", "input": "prompts", "output": "answers"}
    second = page.runner_up
    lines = [f"runner-up: {_beside(second, best) if second else 'no other replica meets the SLO'}"]
    others = [("without draft tokens", page.undrafted)] if page.plan.question.features.draft else []
    others += [(f"{words[one.what]} x2", one.fleet) for one in page.doubled]
    none = "no fleet meets the SLO"
    lines += [f"{what}: {_beside(one, best) if one else none}" for what, one in others]
    return "\n".join(lines)


def _why_not(asked: WhyNotFleet, best: Fleet) -> str:
    beside = f"{_beside(asked.fleet, best)}; " if asked.fleet else ""
    return f"why not {asked.layout}: {beside}{asked.because}"


def _beside(fleet: Fleet, best: Fleet) -> str:
    more = fleet.dollars_per_hour / best.dollars_per_hour - 1
    return f"{fleet}, {f'{more:+.0%}' if round(more, 2) else 'the same'} dollars"

"""`rooflight simulate`: requests through the real scheduler under a virtual clock."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from rooflight.batching import Policy
from rooflight.cli.flags import add_choice, add_on, add_plot
from rooflight.cli.model import warn_of_gaps
from rooflight.cli.output import print_json, suggest, write_file
from rooflight.cli.parser import Namespace, Parser
from rooflight.cli.progress import progress
from rooflight.cli.serving_flags import SERVING_LAYOUT, add_dtypes
from rooflight.cli.simulate_page import Page, comparison, document, plot, text
from rooflight.errors import ParseError, UsageError
from rooflight.plan.serving.arrivals import Arrival, Traffic, parse_lengths
from rooflight.plan.serving.layout import ServingLayout, parse_serving_layout
from rooflight.plan.serving.precision import parse_precision
from rooflight.plan.serving.simulate import Separation, Simulation, simulate
from rooflight.plan.serving.simulate_setup import Setup, Sizes
from rooflight.plan.serving.simulate_tally import Slo
from rooflight.plan.serving.trace import Trace
from rooflight.report.latency_plot import latency_svg
from rooflight.specs.presets import load_model
from rooflight.specs.slice import parse_slice
from rooflight.units import parse_count, parse_seconds

HELP = "requests through the real scheduler under a virtual clock: TTFT, TPOT, goodput"

SEPARATED = "separated"
POLICIES = (*(str(policy) for policy in Policy), SEPARATED)
_MOST = 10**9
_DEFAULT_REQUESTS = 10_000
_MOST_REPLICAS = 10_000


@dataclass(frozen=True, slots=True)
class _Load:
    """Requests that can be streamed again for each policy, how many, and their mean lengths."""

    arrivals: Callable[[], Iterator[Arrival]]
    num_requests: int
    input_tokens: int
    output_tokens: int
    words: str


def configure(parser: Parser) -> None:
    parser.add_argument("model", help="a preset such as llama3-8b, or the path of a config.json")
    add_on(parser)
    parser.add_argument("--layout", help=f"tp over all chips if left out; {SERVING_LAYOUT}")
    add_dtypes(parser)
    parser.add_argument("--rate", help="requests a second, of the whole fleet")
    parser.add_argument(
        "--isl", help="prompt tokens: 1024, 1024~0.8 (lognormal), 100..2000 (uniform) or exp:1024"
    )
    parser.add_argument("--osl", help="new tokens, in the same words")
    parser.add_argument("--burstiness", default="1", help="of arrivals: 1 (default) is Poisson")
    parser.add_argument("--trace", metavar="FILE", help="recorded requests, .csv or .jsonl")
    parser.add_argument("--requests", help="how many (default 10000, or the whole trace)")
    parser.add_argument("--seed", default="0", help="of the random traffic (default 0)")
    parser.add_argument("--ttft", metavar="TIME", help="promised time to first token: 1s")
    parser.add_argument("--tpot", metavar="TIME", help="promised time per further token: 30ms")
    parser.add_argument("--replicas", default="1", help="slices that serve (default 1)")
    parser.add_argument(
        "--prefill-replicas", help="of these, in policy separated (default: by work)"
    )
    add_choice(
        parser,
        "--policy",
        POLICIES,
        what="policy",
        default="continuous",
        help="how prefill and generate share a replica (continuous by default)",
    )
    parser.add_argument("--compare", action="store_true", help="all policies on the same traffic")
    _add_sizes(parser)
    add_plot(parser)
    parser.set_examples(
        "rooflight simulate llama3-8b --on v5e:2x4 --dtypes int8/bf16/bf16 --rate 20 --isl 1024"
        " --osl 256 --ttft 1s --tpot 30ms",
        "rooflight simulate llama3-8b --on v5e:2x4 --rate 20 --isl 1024~0.8 --osl 256~0.6"
        " --replicas 3 --compare --requests 2000",
    )


def _add_sizes(parser: Parser) -> None:
    default = Sizes()
    for flag, value, what in (
        ("--rows", default.max_rows, "sequences that run at once"),
        ("--step-tokens", default.max_step_tokens, "tokens of a step, decode and prefill"),
        ("--block-tokens", default.block_tokens, "tokens of a KV block"),
        ("--max-waiting", default.max_waiting, "requests that may wait for a replica"),
    ):
        parser.add_argument(flag, default=str(value), help=f"{what} (default {value})")


def run(args: Namespace) -> int:
    model = load_model(args.model)
    warn_of_gaps(model)
    on = parse_slice(args.on)
    layout = parse_serving_layout(args.layout) if args.layout else ServingLayout(tp=on.num_chips)
    setup = Setup(model, on, layout, parse_precision(args.dtypes), _sizes(args))
    load, slo = _load(args), _slo(args)
    policies = POLICIES if args.compare else (args.policy,)
    found = {policy: _simulate(args, setup, load, slo, policy) for policy in policies}
    simulations = {p: s for p, s in found.items() if isinstance(s, Simulation)}
    first = simulations[args.policy] if args.policy in simulations else _refuse(found[args.policy])
    page = Page(args.model, setup, load.words, slo, args.policy, first)
    if args.plot:
        write_file(args.plot, latency_svg(plot(page)), flag="--plot")
    if args.json:
        print_json("simulate", document(page, found if args.compare else {}))
    else:
        print("\n\n".join([text(page), comparison(found)] if args.compare else [text(page)]))
        if not args.compare:
            suggest(_compare_command(args))
    return 0 if page.is_kept else 1


def _refuse(reason: Simulation | str) -> Simulation:
    raise UsageError(str(reason), hint="add --replicas 2, or choose another --policy")


def _simulate(
    args: Namespace, setup: Setup, load: _Load, slo: Slo, policy: str
) -> Simulation | str:
    """A policy on the traffic, or why it cannot be."""
    replicas = _replicas(args, setup, load, policy)
    if isinstance(replicas, str):
        return replicas
    own = Policy.CONTINUOUS if policy == SEPARATED else Policy(policy)
    with progress("requests", "finished") as watch:
        return simulate(
            load.arrivals(),
            cost=setup.cost(),
            limits=setup.limits(own),
            replicas=replicas,
            slo=slo,
            watch=lambda came, done: watch(came, load.num_requests, done),
        )


def _replicas(args: Namespace, setup: Setup, load: _Load, policy: str) -> int | Separation | str:
    replicas = _whole("--replicas", args.replicas, most=_MOST_REPLICAS)
    prefill = args.prefill_replicas
    own = None if prefill is None else _whole("--prefill-replicas", prefill, most=_MOST_REPLICAS)
    if policy != SEPARATED:
        return replicas
    if replicas < 2:
        return "separated needs a prefill and a generate replica"
    return setup.separation(
        replicas,
        prefill_replicas=own,
        input_tokens=load.input_tokens,
        output_tokens=load.output_tokens,
    )


def _load(args: Namespace) -> _Load:
    requests = None if args.requests is None else _whole("--requests", args.requests, most=_MOST)
    if args.trace:
        return _recorded(args, requests)
    for flag in ("rate", "isl", "osl"):
        if getattr(args, flag) is None:
            raise UsageError(
                f"no traffic: --{flag} is missing",
                hint="give --rate 20 --isl 1024 --osl 256, or --trace FILE",
            )
    traffic = Traffic(
        _positive("--rate", args.rate),
        parse_lengths(args.isl, what="--isl"),
        parse_lengths(args.osl, what="--osl"),
        requests or _DEFAULT_REQUESTS,
        burstiness=_positive("--burstiness", args.burstiness),
        seed=_whole("--seed", args.seed, least=0, most=_MOST),
    )
    words = f"{traffic.rate:g} requests/s, {traffic.input} in, {traffic.output} out"
    means = max(1, round(traffic.input.mean)), max(1, round(traffic.output.mean))
    return _Load(traffic.arrivals, traffic.num_requests, *means, words)


def _recorded(args: Namespace, requests: int | None) -> _Load:
    given = [flag for flag in ("rate", "isl", "osl") if getattr(args, flag) is not None]
    if given:
        raise UsageError(
            f"--trace has its own arrivals and lengths; --{given[0]} would be ignored",
            hint=f"leave out --{given[0]}, or --trace",
        )
    trace = Trace(Path(args.trace))
    count = inputs = outputs = 0
    for arrival in islice(trace.arrivals(), requests):
        count += 1
        inputs, outputs = inputs + arrival.input_tokens, outputs + arrival.output_tokens
    means = max(1, inputs // count), max(1, outputs // count)
    words = f"{Path(args.trace).name}, {means[0]} in, {means[1]} out on average"
    return _Load(lambda: islice(trace.arrivals(), requests), count, *means, words)


def _slo(args: Namespace) -> Slo:
    return Slo(
        math.inf if args.ttft is None else parse_seconds(args.ttft, what="--ttft"),
        math.inf if args.tpot is None else parse_seconds(args.tpot, what="--tpot"),
    )


def _sizes(args: Namespace) -> Sizes:
    return Sizes(
        _whole("--rows", args.rows, most=10**5),
        _whole("--step-tokens", args.step_tokens, most=10**7),
        _whole("--block-tokens", args.block_tokens, most=10**5),
        _whole("--max-waiting", args.max_waiting, most=_MOST),
    )


def _whole(flag: str, word: str, *, most: int, least: int = 1) -> int:
    count = parse_count(word, what=flag)
    if not least <= count <= most:
        raise UsageError(f"{flag} {word} is not from {least} to {most:,}", hint=f"write {flag} 1")
    return count


def _positive(flag: str, word: str) -> float:
    try:
        value = float(word)
    except ValueError:
        value = math.nan
    if not 1e-6 <= value <= 1e8:
        raise ParseError(f"{flag} {word!r} is not a number above 0", hint=f"write {flag} 20")
    return value


def _compare_command(args: Namespace) -> str:
    flags = ("layout", "rate", "isl", "osl", "trace", "requests", "ttft", "tpot")
    given = [f"--{flag} {getattr(args, flag)}" for flag in flags if getattr(args, flag)]
    replicas = args.replicas if args.replicas != "1" else "2"
    words = [args.model, "--on", args.on, "--dtypes", args.dtypes, *given]
    return " ".join(["rooflight simulate", *words, "--replicas", replicas, "--compare"])

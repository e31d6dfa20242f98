"""`rooflight simulate`: requests through the real scheduler under a virtual clock."""

from rooflight.api.serving import (
    REQUESTS,
    SIMULATED_POLICIES,
    SimulatedPolicy,
    SimulationQuestion,
    simulation_question,
)
from rooflight.api.traffic import read_slo
from rooflight.cli.flags import add_choice, add_on, add_plot, keywords
from rooflight.cli.output import print_json, show, suggest, write_file
from rooflight.cli.parser import Namespace, Parser
from rooflight.cli.progress import progress
from rooflight.cli.serving_flags import add_engine
from rooflight.cli.simulate_page import SimulationPage, comparison, document, plot, text
from rooflight.cli.traffic_flags import add_replica, add_traffic, load_of, setup_of
from rooflight.plan.serving.simulate.run import Simulation
from rooflight.ui.svg.latency import latency_svg

HELP = "requests through the real scheduler under a virtual clock: TTFT, TPOT, goodput"

_MOST = 10**9


def configure(parser: Parser) -> None:
    parser.add_argument("model", help="a preset such as llama3-8b, or the path of a config.json")
    add_on(parser)
    add_traffic(parser, requests=REQUESTS)
    add_replica(parser)
    parser.add_argument(
        "--prefill-replicas", help="of these, in policy disaggregated (default: by work)"
    )
    add_choice(
        parser,
        "--policy",
        SIMULATED_POLICIES,
        what="policy",
        default="continuous",
        help="how prefill and generate share a replica (continuous by default)",
    )
    parser.add_argument("--compare", action="store_true", help="all policies on the same traffic")
    add_engine(parser)
    add_plot(parser)
    parser.set_examples(
        "rooflight simulate llama3-8b --on v5e:2x4 --dtypes int8/bf16/bf16 --rate 8 --isl 1024"
        " --osl 256 --ttft 1s --tpot 30ms",
        "rooflight simulate llama3-8b --on v5e:2x4 --rate 20 --isl 1024~0.8 --osl 256~0.6"
        " --replicas 3 --compare --requests 2000",
    )


def run(args: Namespace) -> int:
    asked = simulation_question(
        setup_of(args),
        load_of(args, default=REQUESTS, most=_MOST),
        read_slo(args.ttft, args.tpot),
        **keywords(simulation_question, args),
    )
    others = SIMULATED_POLICIES if args.compare else ()
    found = {p: asked.obstacle(p) or _simulate(asked, p) for p in others if p != args.policy}
    first = _simulate(asked, args.policy)
    page = SimulationPage(
        *(args.model, asked.setup, asked.load.words, asked.slo, args.policy, first),
        asked.calibration,
    )
    compared = {policy: found.get(policy, first) for policy in others}
    if args.plot:
        write_file(args.plot, latency_svg(plot(page)), flag="--plot")
    if args.json:
        print_json("simulate", document(page, compared))
    else:
        show("\n\n".join([text(page), *([comparison(compared)] if compared else [])]))
        if not args.compare:
            suggest(_compare_command(args))
    return 0 if page.meets_slo else 1


def _simulate(asked: SimulationQuestion, policy: SimulatedPolicy) -> Simulation:
    total = asked.load.num_requests
    with progress("requests", "finished") as watch:
        return asked.run(policy, watch=lambda came, done: watch(came, total, done))


def _compare_command(args: Namespace) -> str:
    flags = ("layout", "rate", "isl", "osl", "prefix-tokens", "trace", "requests", "ttft", "tpot")
    values = {flag: getattr(args, flag.replace("-", "_")) for flag in flags}
    given = [f"--{flag} {value}" for flag, value in values.items() if value]
    replicas = args.replicas if args.replicas != "1" else "2"
    words = [args.model, "--on", args.on, "--dtypes", args.dtypes, *given]
    return " ".join(["rooflight simulate", *words, "--replicas", replicas, "--compare"])

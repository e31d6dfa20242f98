"""`rooflight simulate`: requests through the real scheduler under a virtual clock."""

from rooflight.batching.request import Policy
from rooflight.cli.flags import add_choice, add_on, add_plot, whole
from rooflight.cli.output import print_json, show, suggest, write_file
from rooflight.cli.parser import Namespace, Parser
from rooflight.cli.progress import progress
from rooflight.cli.replica_flags import MOST_REPLICAS, add_replica, setup_of
from rooflight.cli.serving_flags import add_engine, engine_of
from rooflight.cli.simulate_page import SimulationPage, comparison, document, plot, text
from rooflight.cli.traffic_flags import TrafficLoad, add_traffic, load_of, slo_of
from rooflight.errors import UsageError
from rooflight.hardware.calibration import Calibration
from rooflight.plan.serving.fleet.cost import fleet_cost
from rooflight.plan.serving.simulate.run import PoolSplit, Simulation, simulate
from rooflight.plan.serving.simulate.setup import Setup
from rooflight.plan.serving.simulate.tally import Slo
from rooflight.plan.serving.step.cost import StepCost
from rooflight.ui.svg.latency import latency_svg

HELP = "requests through the real scheduler under a virtual clock: TTFT, TPOT, goodput"

SEPARATED = "separated"
POLICIES = (*(str(policy) for policy in Policy), SEPARATED)
_MOST = 10**9
_DEFAULT_REQUESTS = 10_000


def configure(parser: Parser) -> None:
    parser.add_argument("model", help="a preset such as llama3-8b, or the path of a config.json")
    add_on(parser)
    add_traffic(parser, requests=_DEFAULT_REQUESTS)
    add_replica(parser)
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
    add_engine(parser)
    add_plot(parser)
    parser.set_examples(
        "rooflight simulate llama3-8b --on v5e:2x4 --dtypes int8/bf16/bf16 --rate 8 --isl 1024"
        " --osl 256 --ttft 1s --tpot 30ms",
        "rooflight simulate llama3-8b --on v5e:2x4 --rate 20 --isl 1024~0.8 --osl 256~0.6"
        " --replicas 3 --compare --requests 2000",
    )


def run(args: Namespace) -> int:
    setup = setup_of(args)
    load = load_of(args, requests=_DEFAULT_REQUESTS, most=_MOST)
    slo = slo_of(args)
    policies = POLICIES if args.compare else (args.policy,)
    cost, known = _cost(args, setup, load)
    found = {policy: _simulate(args, setup, load, slo, policy, cost) for policy in policies}
    simulations = {p: s for p, s in found.items() if isinstance(s, Simulation)}
    first = simulations[args.policy] if args.policy in simulations else _refuse(found[args.policy])
    page = SimulationPage(args.model, setup, load.words, slo, args.policy, first, known)
    if args.plot:
        write_file(args.plot, latency_svg(plot(page)), flag="--plot")
    if args.json:
        print_json("simulate", document(page, found if args.compare else {}))
    else:
        show("\n\n".join([text(page), comparison(found)] if args.compare else [text(page)]))
        if not args.compare:
            suggest(_compare_command(args))
    return 0 if page.is_kept else 1


def _refuse(reason: Simulation | str) -> Simulation:
    raise UsageError(str(reason), hint="add --replicas 2, or choose another --policy")


def _cost(args: Namespace, setup: Setup, load: TrafficLoad) -> tuple[StepCost, Calibration | None]:
    """Seconds of a step at the mean lengths of the traffic, and what they rest on."""
    prompt, half = load.input_tokens, load.output_tokens // 2
    cost, _, known = fleet_cost(
        setup, input_tokens=prompt, context=prompt + half, engine=engine_of(args)
    )
    return cost, known


def _simulate(
    args: Namespace, setup: Setup, load: TrafficLoad, slo: Slo, policy: str, cost: StepCost
) -> Simulation | str:
    """A policy on the traffic, or why it cannot be."""
    replicas = _replicas(args, setup, load, policy, cost)
    if isinstance(replicas, str):
        return replicas
    own = Policy.CONTINUOUS if policy == SEPARATED else Policy(policy)
    with progress("requests", "finished") as watch:
        return simulate(
            load.arrivals(),
            cost=cost,
            limits=setup.limits(own),
            replicas=replicas,
            slo=slo,
            watch=lambda came, done: watch(came, load.num_requests, done),
        )


def _replicas(
    args: Namespace, setup: Setup, load: TrafficLoad, policy: str, cost: StepCost
) -> int | PoolSplit | str:
    replicas = whole("--replicas", args.replicas, most=MOST_REPLICAS)
    prefill = args.prefill_replicas
    own = None if prefill is None else whole("--prefill-replicas", prefill, most=MOST_REPLICAS)
    if policy != SEPARATED:
        return replicas
    if replicas < 2:
        return "separated needs a prefill and a generate replica"
    return setup.separation(
        replicas,
        prefill_replicas=own,
        input_tokens=load.input_tokens,
        output_tokens=load.output_tokens,
        cost=cost,
    )


def _compare_command(args: Namespace) -> str:
    flags = ("layout", "rate", "isl", "osl", "prefix-tokens", "trace", "requests", "ttft", "tpot")
    values = {flag: getattr(args, flag.replace("-", "_")) for flag in flags}
    given = [f"--{flag} {value}" for flag, value in values.items() if value]
    replicas = args.replicas if args.replicas != "1" else "2"
    words = [args.model, "--on", args.on, "--dtypes", args.dtypes, *given]
    return " ".join(["rooflight simulate", *words, "--replicas", replicas, "--compare"])

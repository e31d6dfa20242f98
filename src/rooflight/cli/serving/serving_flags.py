"""The flags that verbs about serving share: the layout in ways, dtypes, and whose calibration."""

from rooflight.api.replica import read_setup
from rooflight.api.traffic import TrafficLoad, read_traffic
from rooflight.cli.flags import add_choice, keywords
from rooflight.cli.parser import Namespace, Parser
from rooflight.cli.planning.model import warn_of_gaps
from rooflight.hardware.calibration import ANY, ROOFS
from rooflight.hardware.serving_calibration import shipped_serving
from rooflight.plan.serving.simulate.setup import SchedulerLimits, Setup
from rooflight.plan.serving.step.adapters import RANK
from rooflight.plan.serving.step.draft import ACCEPTED

SERVING_LAYOUT = (
    "ways, such as tp=16,kv=batch: tp tensor (kv heads, then query heads), pp stages, dp sequences"
    " in attention, ep experts, ws the model dim of weights, cp positions of a prompt; kv=heads,"
    " batch or sequence splits the cache where tp is more than the kv heads"
)

SERVED = (  # flags of features, of all verbs
    *("draft-tokens", "acceptance", "draft-model", "expert-skew", "redundant-experts"),
    *("adapters", "adapter-rank", "adapters-resident"),
)


def add_dtypes(parser: Parser) -> None:
    parser.add_argument(
        "--dtypes",
        metavar="W[/KV[/COMPUTE]]",
        help="of weights, cache and matmuls: int8, int8/bf16/bf16 (default: weights as they are"
        " published, such as fp8 or mxfp4@experts, and the cache in bf16)",
    )


def add_engine(parser: Parser) -> None:
    add_choice(
        parser,
        "--engine",
        (ANY, ROOFS, *sorted({engine for _, engine, _ in shipped_serving()} - {ANY})),
        default=ANY,
        help="whose calibration to plan with (default any; none: the roofline bound)",
    )


def add_replica(parser: Parser) -> None:
    """How a slice serves the model; `--on` and `model` are the verb's own."""
    parser.add_argument("--layout", help=f"tp over all chips if left out; {SERVING_LAYOUT}")
    add_dtypes(parser)
    parser.add_argument("--replicas", default="1", help="slices that serve (default 1)")
    add_sizes(parser)
    default = SchedulerLimits()
    for flag, value, what in (
        ("--block-tokens", default.block_tokens, "tokens of a KV block"),
        ("--max-waiting", default.max_waiting, "requests that may wait for a replica"),
    ):
        parser.add_argument(flag, default=str(value), help=f"{what} (default {value})")
    add_features(parser)


def add_features(parser: Parser) -> None:
    """What a replica serves beside the model, or as it is not by itself."""
    parser.add_argument(
        "--draft-tokens",
        metavar="N",
        help="speculative decoding: of each sequence, proposed ahead of a step (default 0)",
    )
    parser.add_argument(
        "--acceptance",
        metavar="SHARE",
        help="of draft tokens: 0.7 each, or 2.4 tokens per step as engines report (default"
        f" {ACCEPTED:g}, that of the measured runs)",
    )
    parser.add_argument(
        "--draft-model",
        metavar="MODEL",
        help="proposes them (default: one further layer of the model itself, as MTP and EAGLE)",
    )
    parser.add_argument(
        "--expert-skew",
        metavar="SKEW",
        help="of tokens over experts: 0.5, visits of the r-th hottest as r^-0.5 (default 0, even);"
        " or a file of measured counts, a line for each layer",
    )
    parser.add_argument(
        "--redundant-experts",
        metavar="N",
        help="EPLB with so many replicas of the hottest experts over all ranks; 0 only moves"
        " experts (default: neither)",
    )
    parser.add_argument(
        "--adapters",
        metavar="N",
        help="LoRA adapters that requests choose among, each as often (default 0), at the linear"
        " layers of attention, MLPs and shared experts",
    )
    parser.add_argument("--adapter-rank", metavar="R", help=f"of adapters (default {RANK})")
    parser.add_argument(
        "--adapters-resident", metavar="N", help="of them, in HBM at once (default: all)"
    )


def add_sizes(parser: Parser) -> None:
    parser.add_argument(
        "--rows",
        help="sequences that run at once (default: the engine's own on such chips, such as 1024 of"
        " vLLM on an H100; 256 on TPUs)",
    )
    parser.add_argument(
        "--step-tokens",
        help="tokens of a step, decode and prefill (default: likewise, such as 8192; 2048 on TPUs)",
    )


def setup_of(args: Namespace) -> Setup:
    """The replica that `--on` and the flags above describe; gaps of the model are named."""
    setup = read_setup(args.model, **keywords(read_setup, args))
    warn_of_gaps(setup.model)
    return setup


def add_traffic(parser: Parser, *, requests: int) -> None:
    """What comes, and its SLO; so many `requests` unless said."""
    parser.add_argument("--rate", help="requests per second; inf: all at once")
    parser.add_argument(
        "--isl", help="prompt tokens: 1024, 1024~0.8 (lognormal), 100..2000 (uniform) or exp:1024"
    )
    parser.add_argument("--osl", help="new tokens, in the same words")
    parser.add_argument(
        "--concurrency",
        metavar="N",
        help="clients, each with one request open at all times, as benchmarks send, in place of"
        " --rate; ten requests each, at least 200, unless --requests says",
    )
    parser.add_argument("--burstiness", default="1", help="of arrivals: 1 (default) is Poisson")
    parser.add_argument(
        "--prefix-tokens", metavar="N", help="of each longer prompt that others share (default 0)"
    )
    parser.add_argument(
        "--prefixes", default="1", metavar="N", help="different shared beginnings (default 1)"
    )
    parser.add_argument("--trace", metavar="FILE", help="recorded requests, .csv or .jsonl")
    parser.add_argument("--requests", help=f"how many (default {requests}, or the whole trace)")
    parser.add_argument("--seed", default="0", help="of the random traffic (default 0)")
    parser.add_argument("--ttft", metavar="TIME", help="SLO of the time to first token: 1s")
    parser.add_argument("--tpot", metavar="TIME", help="SLO of the time per output token: 30ms")


def load_of(args: Namespace, *, default: int, most: int) -> TrafficLoad:
    """The traffic; `default` requests unless said, never above `most`."""
    own = [name for name in ("turns", "think") if name not in args]  # of `simulate` alone
    asked = keywords(read_traffic, args, but=["default", "most", *own])
    return read_traffic(**asked, default=default, most=most)

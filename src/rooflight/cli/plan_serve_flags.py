"""The flags of `rooflight plan serve`, and what they say: traffic, prices, sizes."""

from collections.abc import Sequence
from pathlib import Path

from rooflight.cli.flags import add_choice
from rooflight.cli.parser import Parser
from rooflight.cli.serving_flags import SERVING_LAYOUT, add_dtypes, add_engine
from rooflight.plan.serving.fleet.way import FLEET_POLICIES
from rooflight.plan.serving.simulate.setup import SchedulerLimits
from rooflight.plan.serving.simulate.trace import RequestTrace, hourly_rates
from rooflight.units import positive

_TRACES = (".csv", ".jsonl", ".json")


def add_traffic(parser: Parser) -> None:
    """What comes, and its SLO."""
    parser.add_argument("model", help="a preset such as llama3-8b, or the path of a config.json")
    parser.add_argument("--rate", required=True, help="requests per second")
    parser.add_argument(
        "--isl",
        required=True,
        help="prompt tokens: 1024, 1024~0.8 (lognormal), 100..2000 (uniform) or exp:1024",
    )
    parser.add_argument("--osl", required=True, help="new tokens, in the same words")
    parser.add_argument("--ttft", metavar="TIME", help="SLO of the time to first token: 1s")
    parser.add_argument("--tpot", metavar="TIME", help="SLO of the time per output token: 30ms")
    parser.add_argument(
        "--percentile", default="95", help="of requests that must get both (default 95)"
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
        what="policy",
        default=None,
        help="replicas that do everything (continuous), or prefill or generate (disaggregated);"
        " whichever is cheaper if left out",
    )
    add_engine(parser)
    sizes = SchedulerLimits()
    parser.add_argument(
        "--rows",
        default=str(sizes.max_rows),
        help=f"sequences that run at once (default {sizes.max_rows})",
    )
    parser.add_argument(
        "--step-tokens",
        default=str(sizes.max_step_tokens),
        help=f"tokens of a step, decode and prefill (default {sizes.max_step_tokens})",
    )


def add_serving_questions(parser: Parser) -> None:
    """What else is asked."""
    parser.add_argument(
        "--sensitivity", action="store_true", help="also with the rate or lengths doubled"
    )
    parser.add_argument("--why-not", metavar="LAYOUT", help="what this layout would cost: tp=4")
    parser.add_argument(
        "--hourly",
        metavar="RATES",
        help="requests per second by hour, joined by commas, or a recorded trace (.csv, .jsonl) to"
        " count them in: replicas by hour and the saving",
    )


def prices_of(words: Sequence[str]) -> dict[str, str]:
    """Dollars of a chip-hour by chip; without a chip, whose prices the others have."""
    split = (word.rpartition("=") for word in words)
    return {name: dollars for name, _, dollars in split}


def rates_of(words: str) -> list[float]:
    """Requests per second, hour by hour; a file is a trace."""
    if words.endswith(_TRACES):
        return hourly_rates(RequestTrace(Path(words)))
    return [positive("--hourly", word, example="5,20,60") for word in words.split(",")]

"""The flags of a replica that is simulated: layout, dtypes, how many rows and tokens a step has."""

from rooflight.cli.flags import whole
from rooflight.cli.model import warn_of_gaps
from rooflight.cli.parser import Namespace, Parser
from rooflight.cli.serving_flags import SERVING_LAYOUT, add_dtypes
from rooflight.hardware.slice import parse_slice
from rooflight.models.presets import load_model
from rooflight.plan.serving.simulate.setup import SchedulerLimits, Setup
from rooflight.plan.serving.step.layout import ServingLayout, parse_serving_layout
from rooflight.plan.serving.step.precision import parse_precision

MOST_REPLICAS = 10_000
_MOST_WAITING = 10**9


def add_replica(parser: Parser) -> None:
    """How a slice serves the model; `--on` and `model` are the verb's own."""
    parser.add_argument("--layout", help=f"tp over all chips if left out; {SERVING_LAYOUT}")
    add_dtypes(parser)
    parser.add_argument("--replicas", default="1", help="slices that serve (default 1)")
    default = SchedulerLimits()
    for flag, value, what in (
        ("--rows", default.max_rows, "sequences that run at once"),
        ("--step-tokens", default.max_step_tokens, "tokens of a step, decode and prefill"),
        ("--block-tokens", default.block_tokens, "tokens of a KV block"),
        ("--max-waiting", default.max_waiting, "requests that may wait for a replica"),
    ):
        parser.add_argument(flag, default=str(value), help=f"{what} (default {value})")


def setup_of(args: Namespace) -> Setup:
    """The replica that `--on` and the flags above describe."""
    model = load_model(args.model)
    warn_of_gaps(model)
    on = parse_slice(args.on)
    layout = parse_serving_layout(args.layout) if args.layout else ServingLayout(tp=on.num_chips)
    sizes = SchedulerLimits(
        whole("--rows", args.rows, most=10**5),
        whole("--step-tokens", args.step_tokens, most=10**7),
        whole("--block-tokens", args.block_tokens, most=10**5),
        whole("--max-waiting", args.max_waiting, most=_MOST_WAITING),
    )
    return Setup(model, on, layout, parse_precision(args.dtypes), sizes)

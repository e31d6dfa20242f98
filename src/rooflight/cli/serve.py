"""`rooflight serve`: a model behind OpenAI's API, with limits that follow from the plan."""

import re
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from rooflight.batching import Limits
from rooflight.cli.flags import add_choice, whole
from rooflight.cli.output import print_json
from rooflight.cli.parser import Namespace, Parser
from rooflight.cli.serve_page import Page, document, text
from rooflight.errors import MissingExtraError, UsageError
from rooflight.plan.serving.fleet_cost import fleet_cost
from rooflight.plan.serving.layout import ServingLayout
from rooflight.plan.serving.precision import parse_precision
from rooflight.plan.serving.simulate_setup import Setup, Sizes
from rooflight.plan.serving.step_cost import StepCost
from rooflight.service.address import bind, check_address
from rooflight.service.keys import environment_key, read_keys
from rooflight.service.waiting_limit import waiting_limit
from rooflight.specs.calibration import ANY
from rooflight.specs.model import ModelSpec
from rooflight.specs.presets import load_model
from rooflight.specs.slice import parse_slice
from rooflight.units import parse_seconds

HELP = "a model of a Hugging Face folder behind OpenAI's API, with limits from the plan"
_PACKAGES = ("jax", "aiohttp", "tokenizers", "prometheus_client", "jinja2", "safetensors")
_DTYPES = ("f32", "bf16")
_NAME = re.compile(r"[\w./:-]{1,128}")
_MOST = 10**7
_TIMES = ("deadline", "write-timeout", "drain", "patience")
_SIZES = {
    "--rows": (32, "sequences that run at once"),
    "--step-tokens": (512, "tokens of a step, decode and prefill"),
    "--block-tokens": (16, "tokens of a KV block"),
    "--max-waiting": (256, "requests that may wait"),
}


class Times(NamedTuple):
    """Seconds that a request, a reader, the end of the server and a step may take."""

    deadline_s: float
    write_s: float
    drain_s: float
    patience_s: float


def configure(parser: Parser) -> None:
    parser.add_argument("model", help="a folder with config.json, tokenizer.json and safetensors")
    parser.add_argument("--host", default="127.0.0.1", help="address (default 127.0.0.1)")
    parser.add_argument("--port", default="8000", help="0 takes one that is free (default 8000)")
    parser.add_argument("--name", help="of the model, for clients (default: of the folder)")
    parser.add_argument("--keys", metavar="FILE", help="a line for each API key: NAME KEY [LIMITS]")
    parser.add_argument("--on", metavar="HARDWARE", help="what it runs on, to predict: v5e:2x4")
    parser.add_argument("--ttft", metavar="TIME", help="promised time to first token: 1s")
    for flag, (default, what) in _SIZES.items():
        parser.add_argument(flag, default=str(default), help=f"{what} (default {default})")
    parser.add_argument("--max-tokens", help="of a prompt and its text (default 2048, or fewer)")
    parser.add_argument("--blocks", help="of KV cache (default: for all rows at full length)")
    add_choice(
        parser, "--dtype", _DTYPES, what="dtype", default="f32", help="of weights and products"
    )
    parser.add_argument("--deadline", default="600s", help="of a request (default 600s)")
    parser.add_argument(
        "--write-timeout", default="20s", help="for a reader to make room (default 20s)"
    )
    parser.add_argument("--drain", default="60s", help="to finish after SIGTERM (default 60s)")
    parser.add_argument(
        "--patience",
        default="5s",
        help="a longer step is stuck, unless it was predicted (default 5s)",
    )
    parser.add_argument("--log", metavar="FILE", help="of JSON lines (default: stderr)")
    parser.add_argument("--dry-run", action="store_true", help="start nothing: print the limits")
    parser.set_examples(
        "rooflight serve llama3-8b --on v5e:2x4 --dtype bf16 --ttft 1s --dry-run",
        "rooflight serve llama3.2-1b --max-tokens 4096 --rows 64 --dry-run",
    )


def run(args: Namespace) -> int:
    folder = Path(args.model)
    if not args.dry_run and not folder.is_dir():
        raise UsageError(
            f"{args.model!r} is no folder, so there are no weights to serve",
            hint="give a folder with config.json, tokenizer.json and safetensors, or --dry-run",
        )
    page = _page(args)
    times = Times(*(_time(args, name) for name in _TIMES))
    if args.dry_run:
        if args.json:
            print_json("serve", document(page))
        else:
            print(text(page))
        return 0
    _require_packages()
    return _serve(args, page, folder, times)


def _serve(args: Namespace, page: Page, folder: Path, times: Times) -> int:
    keys = read_keys(Path(args.keys)) if args.keys else environment_key()
    check_address(args.host, has_keys=bool(keys))
    sock = bind(args.host, whole("--port", args.port, least=0, most=65535))
    # Only now: these bring jax, which takes seconds.
    from rooflight.engine import EngineConfig
    from rooflight.service.serve import Deployment, serve
    from rooflight.service.service import Settings

    limits = page.limits
    config = EngineConfig(
        max_rows=limits.max_rows,
        block_tokens=limits.block_tokens,
        num_blocks=limits.num_blocks,
        max_step_tokens=limits.max_step_tokens,
        max_model_tokens=page.max_tokens,
        max_waiting=limits.max_waiting,
        max_waiting_tokens=page.waiting.max_waiting_tokens,
    )
    settings = Settings(page.name, keys, *times)
    deployment = Deployment(folder, config, settings, page.waiting, sock, args.dtype, args.log)

    def announce() -> None:
        host, bound = sock.getsockname()[:2]
        if args.json:
            print_json("serve", {**document(page), "host": host, "port": bound})
        else:
            print(f"{text(page)}\n\nlistening on http://{host}:{bound}")
        sys.stdout.flush()

    return 0 if serve(deployment, announce) else 1


def _page(args: Namespace) -> Page:
    model = load_model(args.model)
    longest = min(2048, model.max_seq or 2048)
    max_tokens = (
        whole("--max-tokens", args.max_tokens, least=2, most=_MOST) if args.max_tokens else longest
    )
    rows, step_tokens, block_tokens, max_waiting = (
        whole(flag, getattr(args, flag[2:].replace("-", "_")), most=_MOST) for flag in _SIZES
    )
    full = rows * -(-max_tokens // block_tokens)
    blocks = whole("--blocks", args.blocks, most=_MOST) if args.blocks else full
    limits = Limits(rows, step_tokens, blocks, block_tokens, max_waiting)
    ttft_s = None if args.ttft is None else parse_seconds(args.ttft, what="--ttft")
    cost = _cost(args, model, limits, max_tokens // 2)
    waiting = waiting_limit(limits, cost, ttft_s=ttft_s, max_model_tokens=max_tokens)
    name = args.name or Path(args.model).resolve().name
    if not _NAME.fullmatch(name):
        raise UsageError(f"{name!r} is no name for a model", hint="add --name my-model")
    return Page(name, limits, max_tokens, waiting)


def _cost(args: Namespace, model: ModelSpec, limits: Limits, context: int) -> StepCost | None:
    """The planner's seconds of a step, where it is said on what; calibrated if it can be."""
    if args.on is None:
        return None
    on = parse_slice(args.on)
    sizes = Sizes(limits.max_rows, limits.max_step_tokens)
    layout, precision = ServingLayout(tp=on.num_chips), parse_precision(args.dtype)
    setup = Setup(model, on, layout, precision, sizes)
    return fleet_cost(setup, input_tokens=context, context=context, engine=ANY)[0]


def _time(args: Namespace, name: str) -> float:
    seconds = parse_seconds(getattr(args, name.replace("-", "_")), what=f"--{name}")
    if not 0 < seconds <= 86400:
        raise UsageError(f"--{name} {seconds:g} s is not within a day", hint=f"write --{name} 60s")
    return seconds


def _require_packages() -> None:
    missing = [name for name in _PACKAGES if find_spec(name) is None]
    if missing:
        raise MissingExtraError(
            f"serving needs {', '.join(missing)}, which is not installed",
            hint="pip install 'rooflight[serve]'",
        )

"""`rooflight serve`: a model behind OpenAI's API, with limits that follow from the plan."""

import os
import re
import sys
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rooflight.batching.request import Limits
from rooflight.cli.flags import add_choice, server_address
from rooflight.cli.output import print_json, show
from rooflight.cli.parser import Namespace, Parser
from rooflight.cli.running.serve_placement import ServePlacement, add_placement, placed
from rooflight.errors import MissingExtraError, UsageError, install
from rooflight.hardware.calibration import ANY
from rooflight.models.presets import load_model
from rooflight.models.spec import ModelSpec
from rooflight.plan.serving.fleet.cost import fleet_cost
from rooflight.plan.serving.simulate.setup import SchedulerLimits, Setup
from rooflight.plan.serving.step.cost import StepCost
from rooflight.serve.server.address import bind, check_address
from rooflight.serve.server.keys import Key, environment_key, read_keys
from rooflight.serve.server.waiting_limit import WaitingLimit, waiting_limit
from rooflight.ui.text.table import table
from rooflight.units import format_seconds, parse_seconds, whole

if TYPE_CHECKING:
    from rooflight.serve.engine.config import EngineConfig
    from rooflight.serve.engine.load import Placement

HELP = "a model of a Hugging Face folder behind OpenAI's API, with limits from the plan"
_PACKAGES = ("jax", "aiohttp", "tokenizers", "prometheus_client", "jinja2", "safetensors")
_NAME = re.compile(r"[\w./:-]{1,128}")
_MOST = 10**7
_PORT = 8000
_DRAFTS, _MOST_DRAFT = 4, 16
_TIMES = ("deadline", "write-timeout", "drain", "step-timeout", "prefill-timeout")
_TRANSFERS = ("bytes", "jax")
_SIZES = {
    "--rows": (32, "sequences that run at once"),
    "--step-tokens": (512, "tokens of a step, decode and prefill"),
    "--block-tokens": (32, "tokens of a KV block"),
    "--max-waiting": (256, "requests that may wait"),
}


class Times(NamedTuple):
    """Seconds that a request, a reader, the end of the server, a step and a prompt may take."""

    deadline_s: float
    write_s: float
    drain_s: float
    step_s: float
    prefill_s: float


@dataclass(frozen=True, slots=True)
class ServePage:
    """A server's sizes."""

    name: str
    limits: Limits
    max_tokens: int
    waiting: WaitingLimit


def configure(parser: Parser) -> None:
    parser.add_argument("model", help="a folder with config.json, tokenizer.json and safetensors")
    parser.add_argument("--host", default="127.0.0.1", help="address (default 127.0.0.1)")
    parser.add_argument("--port", help=f"0: any that is free (default {_PORT}, or a free one)")
    parser.add_argument("--name", help="of the model, for clients (default: of the folder)")
    parser.add_argument("--keys", metavar="FILE", help="a line for each API key: NAME KEY [LIMITS]")
    add_placement(parser)
    parser.add_argument("--ttft", metavar="TIME", help="SLO of the time to first token: 1s")
    for flag, (default, what) in _SIZES.items():
        parser.add_argument(flag, help=f"{what} (default {default})")
    parser.add_argument("--max-tokens", help="of a prompt and its text (default 2048, or fewer)")
    parser.add_argument("--blocks", help="of KV cache (default: for all rows at full length)")
    parser.add_argument("--host-blocks", help="of CPU KV offload, for evicted prefixes (default 0)")
    parser.add_argument("--draft-tokens", help="of a sequence, proposed ahead per step (default 0)")
    parser.add_argument(
        "--draft-model", metavar="FOLDER", help="proposes them, in place of past text"
    )
    parser.add_argument("--deadline", default="600s", help="of a request (default 600s)")
    parser.add_argument(
        "--write-timeout", default="20s", help="for a reader to make room (default 20s)"
    )
    parser.add_argument("--drain", default="60s", help="to finish after SIGTERM (default 60s)")
    parser.add_argument(
        "--step-timeout",
        default="5s",
        help="a longer step is stuck, unless it was predicted (default 5s)",
    )
    parser.add_argument("--log", metavar="FILE", help="of JSON lines (default: stderr)")
    parser.add_argument("--open-metrics", action="store_true", help="ask no key for /metrics")
    parser.add_argument(
        "--prefill-only", action="store_true", help="compute prompts, for --prefill-from of others"
    )
    parser.add_argument("--prefill-from", metavar="URL", help="a server that computes prompts")
    parser.add_argument(
        "--prefill-timeout", default="5s", help="then a prompt is computed here (default 5s)"
    )
    add_choice(
        parser, "--transfer", _TRANSFERS, default="bytes", help="how KV gets from one to the other"
    )
    parser.add_argument("--dry-run", action="store_true", help="start nothing: print the limits")
    parser.set_examples(
        "rooflight serve llama3-8b --on v5e:2x4 --dtypes bf16 --ttft 1s --dry-run",
        "rooflight serve llama3.2-1b --max-tokens 4096 --rows 64 --dry-run",
    )


def run(args: Namespace) -> int:
    folder = Path(args.model)
    if not args.dry_run and not folder.is_dir():
        raise UsageError(
            f"weights to serve must be in a folder, got {args.model!r}",
            hint="give a folder with config.json, tokenizer.json and safetensors, or --dry-run",
        )
    model = load_model(args.model)
    where = placed(args, model)
    page = _page(args, model, where)
    prefill_from = _prefill_from(args)
    times = Times(*(_time(args, name) for name in _TIMES))
    if args.dry_run:
        _check(args, page, where, folder)
        if args.json:
            print_json("serve", document(page))
        else:
            show(text(page))
        return 0
    _require_packages()
    return _serve(args, page, where, folder, times, prefill_from)


def _check(args: Namespace, page: ServePage, where: ServePlacement, folder: Path) -> None:
    """Refuses what `_serve` would, less what depends on the devices that are here."""
    keys = _keys(args)
    check_address(args.host, has_keys=bool(keys))
    if not folder.is_dir():
        return
    _require_packages()
    from rooflight.serve.chat.chat_template import load_template
    from rooflight.serve.chat.tokens import load_tokenizer
    from rooflight.serve.engine.load import check_folder

    load_tokenizer(folder)
    if (template := load_template(folder)) is not None:
        template.stop()
    check_folder(folder, _config(args, page, is_disaggregated=False), _placement(args, where))


def _keys(args: Namespace) -> tuple[Key, ...]:
    return read_keys(Path(args.keys)) if args.keys else environment_key()


def _serve(
    args: Namespace,
    page: ServePage,
    where: ServePlacement,
    folder: Path,
    times: Times,
    prefill_from: str | None,
) -> int:
    keys = _keys(args)
    check_address(args.host, has_keys=bool(keys))
    port = None if args.port is None else whole("--port", args.port, least=0, most=65535)
    with bind(args.host, port, default=_PORT) as sock:
        # Only now: these bring jax, which takes seconds.
        from rooflight.serve.disaggregated.fingerprint import fingerprint
        from rooflight.serve.disaggregated.sides import PeerConfig
        from rooflight.serve.http.run import Deployment, serve
        from rooflight.serve.http.service import ServerSettings

        is_disaggregated = args.prefill_only or prefill_from is not None
        config = _config(args, page, is_disaggregated=is_disaggregated)
        settings = ServerSettings(page.name, keys, *times[:4], open_metrics=args.open_metrics)
        peer = None
        if is_disaggregated:
            mark, key = (
                fingerprint(folder, config, where.dtypes),
                os.environ.get("ROOFLIGHT_API_KEY"),
            )
            peer = PeerConfig(mark, prefill_from, key, times.prefill_s, args.transfer, args.host)
        placement = _placement(args, where)
        deployment = Deployment(
            folder, config, settings, page.waiting, sock, placement, args.log, peer
        )

        def announce() -> None:
            host, bound = sock.getsockname()[:2]
            if args.json:
                print_json("serve", {**document(page), "host": host, "port": bound})
            else:
                print(f"{text(page)}\n\nlistening on http://{host}:{bound}")
            sys.stdout.flush()

        return 0 if serve(deployment, announce) else 1


def _config(args: Namespace, page: ServePage, *, is_disaggregated: bool) -> "EngineConfig":
    from rooflight.serve.engine.config import EngineConfig

    limits = page.limits
    return EngineConfig(
        max_rows=limits.max_rows,
        block_tokens=limits.block_tokens,
        num_blocks=limits.num_blocks,
        max_step_tokens=limits.max_step_tokens,
        max_model_tokens=page.max_tokens,
        max_waiting=limits.max_waiting,
        max_waiting_tokens=page.waiting.max_waiting_tokens,
        moves_blocks=is_disaggregated,
        host_blocks=limits.host_blocks,
        num_draft=_num_draft(args),
    )


def _placement(args: Namespace, where: ServePlacement) -> "Placement":
    from rooflight.serve.engine.load import ONE_DEVICE, Placement

    on = str(where.on or ONE_DEVICE.on)
    return Placement(on, str(where.layout), where.dtypes, args.draft_model)


def _num_draft(args: Namespace) -> int:
    if args.draft_model is not None and not Path(args.draft_model).is_dir():
        raise UsageError(
            f"--draft-model must be a folder, got {args.draft_model!r}",
            hint="give a folder with config.json and safetensors of the same vocabulary",
        )
    default = 0 if args.draft_model is None else _DRAFTS
    return (
        default
        if args.draft_tokens is None
        else whole("--draft-tokens", args.draft_tokens, most=_MOST_DRAFT)
    )


def _prefill_from(args: Namespace) -> str | None:
    if args.prefill_from is None:
        return None
    if args.prefill_only:
        raise UsageError(
            "--prefill-only and --prefill-from are the two sides of one thing",
            hint="start two servers, and give each one of these flags",
        )
    return server_address(args.prefill_from, flag="--prefill-from")


def _page(args: Namespace, model: ModelSpec, where: ServePlacement) -> ServePage:
    def size(flag: str, default: int, least: int = 1) -> int:
        given = getattr(args, flag[2:].replace("-", "_"))
        planned = where.sizes.get(flag, default)
        return planned if given is None else whole(flag, given, least=least, most=_MOST)

    max_tokens = size("--max-tokens", min(2048, model.max_seq or 2048), least=2)
    sizes = (size(flag, default) for flag, (default, _) in _SIZES.items())
    rows, step_tokens, block_tokens, max_waiting = sizes
    blocks = size("--blocks", rows * -(-max_tokens // block_tokens))
    host_blocks = size("--host-blocks", 0, least=0)
    limits = Limits(rows, step_tokens, blocks, block_tokens, max_waiting, host_blocks=host_blocks)
    ttft_s = None if args.ttft is None else parse_seconds(args.ttft, what="--ttft")
    cost = _cost(where, model, limits, max_tokens // 2)
    waiting = waiting_limit(limits, cost, ttft_s=ttft_s, max_model_tokens=max_tokens)
    name = args.name or Path(args.model).resolve().name
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"the name of a model must match, got {name!r}", hint="add --name my-model"
        )
    return ServePage(name, limits, max_tokens, waiting)


def _cost(where: ServePlacement, model: ModelSpec, limits: Limits, context: int) -> StepCost | None:
    """The planner's seconds of a step, where it is said on what; calibrated if it can be."""
    if where.on is None:
        return None
    sizes = SchedulerLimits(limits.max_rows, limits.max_step_tokens)
    setup = Setup(model, where.on, where.layout, where.precision, sizes)
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
            f"serving needs {', '.join(missing)}, which is not installed", hint=install("serve")
        )


def text(page: ServePage) -> str:
    limits, waiting = page.limits, page.waiting
    step = "how long a full step takes is unknown: give --on"
    if waiting.step_seconds is not None:
        step = f"a full step takes {format_seconds(waiting.step_seconds)}, predicted"
    pool = f"{limits.num_blocks} blocks of {limits.block_tokens}"
    rows = [
        ["running requests", f"{limits.max_rows:,}", "sequences of a step"],
        ["tokens of a request", f"{page.max_tokens:,}", "prompt and text"],
        ["tokens of KV cache", f"{limits.pool_tokens:,}", pool],
        *_kept(limits),
        ["tokens of a step", f"{limits.max_step_tokens:,}", step],
        ["waiting requests", f"{limits.max_waiting:,}", "the next gets 429"],
        ["waiting tokens", f"{waiting.max_waiting_tokens:,}", waiting.because],
    ]
    return f"{page.name}\n\n{table(('limit', 'value', 'because'), rows, align='lrl')}"


def _kept(limits: Limits) -> list[list[str]]:
    if not limits.host_blocks:
        return []
    tokens = limits.host_blocks * limits.block_tokens
    return [["tokens of CPU KV offload", f"{tokens:,}", "cached prefixes, once evicted"]]


def document(page: ServePage) -> dict[str, object]:
    return {
        "name": page.name,
        "max_model_tokens": page.max_tokens,
        "limits": {**asdict(page.limits), "policy": str(page.limits.policy)},
        "waiting": asdict(page.waiting),
    }

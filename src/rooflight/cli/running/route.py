"""`rooflight route`: one address for several servers, by shared prefixes and load."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

from rooflight.batching.ring import HashRing
from rooflight.cli.flags import server_address
from rooflight.cli.output import print_json, show
from rooflight.cli.parser import Namespace, Parser
from rooflight.errors import MissingExtraError, UsageError, install
from rooflight.ui.text.table import table
from rooflight.units import parse_seconds, whole

HELP = "one address for several servers: requests go by shared prefixes and load"

_MOST_REPLICAS = 1000
_PORT = 8080


def configure(parser: Parser) -> None:
    parser.add_argument(
        "--replica", required=True, action="append", metavar="URL", help="of a server; repeat it"
    )
    parser.add_argument("--host", default="127.0.0.1", help="address (default 127.0.0.1)")
    parser.add_argument("--port", help=f"0: any that is free (default {_PORT}, or a free one)")
    parser.add_argument("--keys", metavar="FILE", help="as `rooflight serve` reads it")
    parser.add_argument(
        "--bound", default="8", help="requests of a prefix that its replica always takes (8)"
    )
    parser.add_argument(
        "--timeout", default="300s", help="without a byte from a replica (default 300s)"
    )
    parser.add_argument("--drain", default="60s", help="to finish after SIGTERM (default 60s)")
    parser.add_argument("--log", metavar="FILE", help="of JSON lines (default: stderr)")
    parser.add_argument("--open-metrics", action="store_true", help="ask no key for /metrics")
    parser.add_argument("--dry-run", action="store_true", help="start nothing: print the shares")
    parser.set_examples(
        "rooflight route --replica http://127.0.0.1:8001 --replica http://127.0.0.1:8002 --dry-run"
    )


def run(args: Namespace) -> int:
    urls = _urls(args)
    bound = whole("--bound", args.bound, most=10**6)
    port = None if args.port is None else whole("--port", args.port, least=0, most=65535)
    timeout_s = parse_seconds(args.timeout, what="--timeout")
    drain_s = parse_seconds(args.drain, what="--drain")
    shares = HashRing(urls).shares()
    if args.dry_run:
        _show(args, shares)
        return 0
    if find_spec("aiohttp") is None:
        raise MissingExtraError(
            "routing needs aiohttp, which is not installed", hint=install("bench")
        )
    return _route(args, urls, bound, port, timeout_s, drain_s)


def _route(
    args: Namespace,
    urls: tuple[str, ...],
    bound: int,
    port: int | None,
    timeout_s: float,
    drain_s: float,
) -> int:
    from rooflight.serve.router.front import RouterSettings
    from rooflight.serve.router.route import route
    from rooflight.serve.server.keys import environment_key, read_keys
    from rooflight.serve.server.logs import Log

    keys = read_keys(Path(args.keys)) if args.keys else environment_key()
    settings = RouterSettings(
        urls,
        keys=keys,
        probe_key=os.environ.get("ROOFLIGHT_API_KEY"),
        host=args.host,
        port=port,
        least_bound=bound,
        timeout_s=timeout_s,
        drain_s=drain_s,
        open_metrics=args.open_metrics,
    )

    def announce(bound_port: int) -> None:
        address = f"http://{args.host}:{bound_port}"
        if args.json:
            print_json("route", {"address": address, "replicas": list(urls)})
        else:
            print(f"routing on {address} to {len(urls)} replicas")
        sys.stdout.flush()

    log = Log(args.log)
    try:
        return 0 if route(settings, log, announce) else 1
    finally:
        log.close()


def _urls(args: Namespace) -> tuple[str, ...]:
    urls = tuple(server_address(url, flag="--replica") for url in args.replica)
    if len(set(urls)) < len(urls) or len(urls) > _MOST_REPLICAS:
        raise UsageError(
            f"--replica names one server twice, or more than {_MOST_REPLICAS:,}",
            hint="name each server once",
        )
    return urls


def _show(args: Namespace, shares: dict[str, float]) -> None:
    if args.json:
        print_json("route", {"shares": shares})
        return
    rows = [[url, f"{share:.1%}"] for url, share in shares.items()]
    show(f"{len(rows)} replicas, none asked; each owns a share of all prefixes:\n")
    show(table(("replica", "share"), rows))

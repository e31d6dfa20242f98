"""The flags of traffic, and what they say: random or recorded requests, and what was promised."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from rooflight.cli.flags import positive, whole
from rooflight.cli.parser import Namespace, Parser
from rooflight.errors import UsageError
from rooflight.plan.serving.simulate.arrivals import (
    Arrival,
    RandomTraffic,
    at_once,
    parse_lengths,
    with_prefixes,
)
from rooflight.plan.serving.simulate.tally import Slo
from rooflight.plan.serving.simulate.trace import RequestTrace
from rooflight.units import parse_seconds

_MOST_SEED = 10**9
_MOST_PREFIXES = 10**6
_OF_A_TRACE = ("rate", "isl", "osl", "prefix_tokens")  # that a file says itself


@dataclass(frozen=True, slots=True)
class TrafficLoad:
    """Requests that can be streamed again and again, how many, and their mean lengths."""

    arrivals: Callable[[], Iterator[Arrival]]
    num_requests: int
    input_tokens: int
    output_tokens: int
    words: str


def add_traffic(parser: Parser, *, requests: int) -> None:
    """What comes, and what was promised of it; so many `requests` unless said."""
    parser.add_argument("--rate", help="requests a second; inf: all at once")
    parser.add_argument(
        "--isl", help="prompt tokens: 1024, 1024~0.8 (lognormal), 100..2000 (uniform) or exp:1024"
    )
    parser.add_argument("--osl", help="new tokens, in the same words")
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
    parser.add_argument("--ttft", metavar="TIME", help="promised time to first token: 1s")
    parser.add_argument("--tpot", metavar="TIME", help="promised time per further token: 30ms")


def load_of(args: Namespace, *, requests: int, most: int) -> TrafficLoad:
    """The traffic; `requests` of them unless said, never above `most`."""
    asked = None if args.requests is None else whole("--requests", args.requests, most=most)
    if args.trace:
        return _recorded(args, asked, most)
    for flag in ("rate", "isl", "osl"):
        if getattr(args, flag) is None:
            raise UsageError(
                f"no traffic: --{flag} is missing",
                hint="give --rate 20 --isl 1024 --osl 256, or --trace FILE",
            )
    return _random(args, asked or requests)


def _random(args: Namespace, requests: int) -> TrafficLoad:
    is_at_once = args.rate == "inf"
    traffic = RandomTraffic(
        1.0 if is_at_once else positive("--rate", args.rate),
        parse_lengths(args.isl, what="--isl"),
        parse_lengths(args.osl, what="--osl"),
        requests,
        burstiness=positive("--burstiness", args.burstiness),
        seed=whole("--seed", args.seed, least=0, most=_MOST_SEED),
    )
    shared = whole("--prefix-tokens", args.prefix_tokens or "0", least=0, most=10**7)
    prefixes = whole("--prefixes", args.prefixes, most=_MOST_PREFIXES)

    def arrivals() -> Iterator[Arrival]:
        drawn = at_once(traffic.arrivals()) if is_at_once else traffic.arrivals()
        if not shared:
            return drawn
        return with_prefixes(drawn, prefixes=prefixes, tokens=shared, seed=traffic.seed)

    words = "all at once" if is_at_once else f"{traffic.rate:g} requests/s"
    words += f", {traffic.input} in, {traffic.output} out"
    words += f", {prefixes} shared x {shared} tokens" if shared else ""
    means = max(1, round(traffic.input.mean)), max(1, round(traffic.output.mean))
    return TrafficLoad(arrivals, requests, *means, words)


def _recorded(args: Namespace, requests: int | None, most: int) -> TrafficLoad:
    given = [f"--{flag.replace('_', '-')}" for flag in _OF_A_TRACE if getattr(args, flag)]
    if given:
        raise UsageError(
            f"--trace has its own arrivals and lengths; {given[0]} would be ignored",
            hint=f"leave out {given[0]}, or --trace",
        )
    trace, first = RequestTrace(Path(args.trace)), requests or most
    count = inputs = outputs = 0
    for arrival in islice(trace.arrivals(), first):
        count += 1
        inputs, outputs = inputs + arrival.input_tokens, outputs + arrival.output_tokens
    means = max(1, inputs // count), max(1, outputs // count)
    words = f"{Path(args.trace).name}, {means[0]} in, {means[1]} out on average"
    return TrafficLoad(lambda: islice(trace.arrivals(), first), count, *means, words)


def slo_of(args: Namespace) -> Slo:
    """What was promised; infinite where nothing was."""
    return Slo(
        math.inf if args.ttft is None else parse_seconds(args.ttft, what="--ttft"),
        math.inf if args.tpot is None else parse_seconds(args.tpot, what="--tpot"),
    )

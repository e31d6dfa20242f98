"""`rooflight bench`: open-loop load on a server, measured beside what is predicted."""

import os
from collections import Counter
from collections.abc import Callable, Sequence
from importlib.util import find_spec

from rooflight.api.serving import MOST_REPLICAS, engine_of
from rooflight.api.traffic import TrafficLoad, read_slo
from rooflight.cli.bench_page import (
    PREDICTED,
    BenchPage,
    document,
    of_latency,
    plot,
    predicted_fields,
    rests_on,
    text,
)
from rooflight.cli.flags import add_plot
from rooflight.cli.output import print_json, show, write_file
from rooflight.cli.parser import Namespace, Parser
from rooflight.cli.progress import progress
from rooflight.cli.server_address import server_address
from rooflight.cli.serving_flags import add_engine
from rooflight.cli.traffic_flags import add_replica, add_traffic, load_of, setup_of
from rooflight.errors import MissingExtraError, UsageError, install
from rooflight.measure.load.machine import busy, other_load
from rooflight.measure.load.predict import Predicted, predict
from rooflight.measure.load.tally import Measured
from rooflight.measure.load.target import Dialect, Target
from rooflight.plan.serving.simulate.arrivals import Arrival
from rooflight.plan.serving.simulate.tally import Slo
from rooflight.ui.svg.latency import latency_svg
from rooflight.ui.text.table import table
from rooflight.units import format_seconds, parse_seconds, whole

HELP = "open-loop load on an OpenAI-compatible server: latencies beside what is predicted"

_DEFAULT_REQUESTS = 100
_MOST_REQUESTS = 10**6


def configure(parser: Parser) -> None:
    parser.add_argument("--url", required=True, help="of the server: http://127.0.0.1:8000")
    add_traffic(parser, requests=_DEFAULT_REQUESTS)
    parser.add_argument("--served", metavar="NAME", help="of the model; the first that is listed")
    parser.add_argument("--key-env", metavar="NAME", help="variable that holds the API key")
    parser.add_argument("--timeout", default="300s", help="of one request (default 300s)")
    parser.add_argument("--time-limit", default="600s", help="of the whole run (default 600s)")
    parser.add_argument("--dry-run", action="store_true", help="send nothing: say what would be")
    parser.add_argument(
        "model", nargs="?", help="to predict as well: a preset, or the path of a config.json"
    )
    parser.add_argument("--on", metavar="HARDWARE", help="chip or slice that serves it: v5e:2x4")
    add_replica(parser)
    add_engine(parser)
    add_plot(parser)
    parser.set_examples(
        "rooflight bench --url http://127.0.0.1:8000 --rate 4 --isl 128 --osl 64 --dry-run",
        "rooflight bench llama3-8b --on v5e:2x4 --url http://127.0.0.1:8000 --rate 20"
        " --isl 1024~0.8 --osl 256 --prefix-tokens 256 --ttft 1s --tpot 30ms --dry-run",
    )


def run(args: Namespace) -> int:
    load = load_of(args, default=_DEFAULT_REQUESTS, most=_MOST_REQUESTS)
    slo = read_slo(args.ttft, args.tpot)
    predicted = _predicted(args, load, slo)
    target = _target(args, predicted)
    if args.dry_run:
        arrivals = list(load.arrivals())
        if args.json:
            print_json("bench", plan_document(target.url, load, arrivals, predicted))
        else:
            show(plan_text(target.url, load, arrivals, predicted))
        return 0
    before = busy(target.url)
    with progress("requests sent", "finished") as watch:
        measured, dialect = _drive(args, load, target, slo, watch)
    other = other_load(before, busy(target.url))
    page = BenchPage(target, dialect, load.words, args.seed, slo, measured, other, predicted)
    if args.plot:
        write_file(args.plot, latency_svg(plot(page)), flag="--plot")
    if args.json:
        print_json("bench", document(page))
    else:
        show(text(page))
    return 0 if page.meets_slo else 1


def _drive(
    args: Namespace,
    load: TrafficLoad,
    target: Target,
    slo: Slo,
    watch: Callable[[int, int, int], None],
) -> tuple[Measured, Dialect]:
    if find_spec("aiohttp") is None:
        raise MissingExtraError(
            "driving a server needs aiohttp, which is not installed", hint=install("bench")
        )
    from rooflight.measure.load.drive import drive

    count = load.num_requests
    driven = drive(
        load.arrivals(),
        num_requests=count,
        target=target,
        slo=slo,
        seed=int(args.seed),
        watch=lambda sent, finished: watch(sent, count, finished),
    )
    return driven.measured, driven.dialect


def _predicted(args: Namespace, load: TrafficLoad, slo: Slo) -> Predicted | None:
    if not args.model and not args.on:
        return None
    if not args.model or not args.on:
        raise UsageError(
            f"no prediction: {'--on' if args.model else 'a model'} is missing",
            hint="write llama3-8b --on v5e:2x4, or leave out both",
        )
    return predict(
        load.arrivals(),
        setup_of(args),
        replicas=whole("--replicas", args.replicas, most=MOST_REPLICAS),
        slo=slo,
        input_tokens=load.input_tokens,
        output_tokens=load.output_tokens,
        engine=engine_of(args.engine),
    )


def _target(args: Namespace, predicted: Predicted | None) -> Target:
    vocab = {"vocab": predicted.setup.model.vocab} if predicted else {}
    return Target(
        server_address(args.url, flag="--url"),
        model=args.served,
        key=_key(args.key_env),
        timeout_s=parse_seconds(args.timeout, what="--timeout"),
        time_limit_s=parse_seconds(args.time_limit, what="--time-limit"),
        **vocab,
    )


def _key(name: str | None) -> str | None:
    """Keys come from the environment: words of a command are seen by every user of a machine."""
    if name is not None and not os.environ.get(name):
        raise UsageError(
            f"--key-env {name}: no such variable is set", hint="export it, or leave out --key-env"
        )
    return os.environ[name] if name else None


def plan_text(
    url: str, load: TrafficLoad, arrivals: Sequence[Arrival], predicted: Predicted | None
) -> str:
    """What a run would send, and what to expect of it."""
    plan = _plan(arrivals)
    lines = [
        f"{load.num_requests:,} requests to {url} over {plan['last_due_s']:.1f} s, none sent:"
        f" {load.words}",
        f"{plan['input_tokens']:,} tokens in ({plan['shared_tokens']:,} of them shared),"
        f" {plan['output_tokens']:,} out; at most {plan['most_in_a_second']:,} due in one second",
    ]
    if predicted is not None:
        lines += ["", _expected(predicted), "", *rests_on(predicted)]
    return "\n".join(lines)


def _plan(arrivals: Sequence[Arrival]) -> dict[str, float]:
    seconds = Counter(int(arrival.time_s) for arrival in arrivals)
    return {
        "last_due_s": arrivals[-1].time_s,
        "input_tokens": sum(a.input_tokens for a in arrivals),
        "shared_tokens": sum(len(a.segments) * a.segment_tokens for a in arrivals),
        "output_tokens": sum(a.output_tokens for a in arrivals),
        "most_in_a_second": max(seconds.values()),
    }


def _expected(predicted: Predicted) -> str:
    rows: list[list[str]] = []
    for name in PREDICTED:
        times, roof_s = of_latency(predicted, name)
        if times is not None and roof_s is not None:
            told = (times.mean, times.p50, times.p95, times.p99, times.largest, roof_s)
            rows.append([name.upper(), *map(format_seconds, told)])
    return table(("predicted", "mean", "p50", "p95", "p99", "largest", "roof"), rows)


def plan_document(
    url: str, load: TrafficLoad, arrivals: Sequence[Arrival], predicted: Predicted | None
) -> dict[str, object]:
    """What a run would send, as JSON."""
    fields = {"url": url, "traffic": load.words, "requests": load.num_requests, "sent": 0}
    return {**fields, **_plan(arrivals), "predicted": predicted_fields(predicted)}

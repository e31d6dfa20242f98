"""`rooflight bench`: open-loop load on a server, measured beside what is predicted."""

import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

from rooflight import __version__
from rooflight.api.replica import engine_of
from rooflight.api.serving import MOST_REPLICAS
from rooflight.api.traffic import TrafficLoad, read_slo
from rooflight.cli.flags import add_plot, server_address
from rooflight.cli.output import picked, print_json, show, write_file
from rooflight.cli.parser import Namespace, Parser
from rooflight.cli.progress import progress
from rooflight.cli.serving.serving_flags import (
    add_engine,
    add_replica,
    add_traffic,
    load_of,
    setup_of,
)
from rooflight.cli.serving.simulate import GOOD_SHARE, answer, quantiles
from rooflight.errors import MissingExtraError, UsageError, install
from rooflight.measure.load.predict import Predicted, predict
from rooflight.measure.load.tally import Measured
from rooflight.measure.load.target import Dialect, Target
from rooflight.plan.serving.simulate.arrivals import Arrival
from rooflight.plan.serving.simulate.tally import Quantiles, Slo
from rooflight.ui.answers.serving import trust
from rooflight.ui.svg.latency import LatencyLine, LatencyPlot, latency_svg
from rooflight.ui.text.table import table
from rooflight.units import format_seconds, format_si, parse_seconds, whole

HELP = "open-loop load on an OpenAI-compatible server: latencies beside what is predicted"

_DEFAULT_REQUESTS = 100
_MOST_REQUESTS = 10**6


@dataclass(frozen=True, slots=True)
class BenchPage:
    """A measurement, and what it was of."""

    target: Target
    dialect: Dialect
    traffic: str
    seed: str
    slo: Slo
    found: Measured
    predicted: Predicted | None

    @property
    def meets_slo(self) -> bool:
        """True if nearly all requests met the SLO."""
        return self.found.good_share >= GOOD_SHARE


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
    with progress("requests sent", "finished") as watch:
        measured, dialect = _drive(args, load, target, slo, watch)
    page = BenchPage(target, dialect, load.words, args.seed, slo, measured, predicted)
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
    require_client()
    from rooflight.measure.load.drive import drive

    count = load.num_requests
    driven = drive(
        load.arrivals(),
        num_requests=count,
        target=target,
        slo=slo,
        seed=int(args.seed),
        watch=lambda sent, finished: watch(sent, count, finished),
        concurrency=load.concurrency,
    )
    return driven.measured, driven.dialect


def require_client() -> None:
    """Raises where what drives a server is not installed."""
    if find_spec("aiohttp") is None:
        raise MissingExtraError(
            "driving a server needs aiohttp, which is not installed", hint=install("bench")
        )


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
        concurrency=load.concurrency,
    )


def _target(args: Namespace, predicted: Predicted | None) -> Target:
    vocab = {"vocab": predicted.setup.model.vocab} if predicted else {}
    return Target(
        server_address(args.url, flag="--url"),
        model=args.served,
        key=key_of(args.key_env),
        timeout_s=parse_seconds(args.timeout, what="--timeout"),
        time_limit_s=parse_seconds(args.time_limit, what="--time-limit"),
        **vocab,
    )


def key_of(name: str | None) -> str | None:
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
    over = f" over {plan['last_due_s']:.1f} s"
    due = f"; at most {plan['most_in_a_second']:,} due in one second"
    if load.concurrency:  # due when others have ended
        over = due = ""
    lines = [
        f"{load.num_requests:,} requests to {url}{over}, none sent: {load.words}",
        f"{plan['input_tokens']:,} tokens in ({plan['shared_tokens']:,} of them shared),"
        f" {plan['output_tokens']:,} out{due}",
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


PREDICTED = ("ttft", "tpot", "e2e")


def text(page: BenchPage) -> str:
    """The answer in a line, then latencies, then what the numbers rest on."""
    found = page.found
    rate = found.output_tokens / found.duration_s if found.duration_s else 0.0
    lines = [
        answer(found, page.slo),
        f"{page.target.url}, {page.dialect.model}; {page.traffic}; seed {page.seed}",
        "",
        _latencies(found, page.predicted),
        "",
        f"{found.num_finished:,} of {found.num_requests:,} requests finished over"
        f" {found.duration_s:.1f} s: {format_si(rate, 'tokens/s')} out",
        *_asked(page.dialect),
        *_late(found),
        _machine(found.other_load),
        *found.faults,
        *rests_on(page.predicted),
    ]
    return "\n".join(lines)


def _times(found: Measured) -> dict[str, Quantiles | None]:
    return {"ttft": found.ttft, "tpot": found.tpot, "itl": found.itl, "e2e": found.e2e}


def of_latency(predicted: Predicted | None, name: str) -> tuple[Quantiles | None, float | None]:
    """The simulated quantiles and the roof; a simulation has no ITL apart from TPOT."""
    if predicted is None or name == "itl":
        return None, None
    simulated, roof = predicted.simulation, predicted.roof
    times = {"ttft": simulated.ttft, "tpot": simulated.tpot, "e2e": simulated.e2e}
    roofs = {"ttft": roof.ttft_s, "tpot": roof.tpot_s, "e2e": roof.e2e_s}
    return times[name], roofs[name]


def _latencies(found: Measured, predicted: Predicted | None) -> str:
    header = ["", "mean", "p50", "p95", "p99", "largest"]
    header += ["predicted p50", "p99", "p50/predicted", "roof"] if predicted else []
    rows: list[list[str]] = []
    for name, times in _times(found).items():
        if times is not None:
            seconds = (times.mean, times.p50, times.p95, times.p99, times.largest)
            beside = _beside(times, *of_latency(predicted, name)) if predicted else []
            rows.append([name.upper(), *map(format_seconds, seconds), *beside])
    return table(header, rows) if rows else "no request finished"


def _beside(times: Quantiles, simulated: Quantiles | None, roof: float | None) -> list[str]:
    if simulated is None or roof is None:
        return ["-", "-", "-", "-"]
    ratio = f"{times.p50 / simulated.p50:.2f}x" if simulated.p50 else "-"
    told = (simulated.p50, simulated.p99)
    return [*map(format_seconds, told), ratio, format_seconds(roof)]


def _asked(dialect: Dialect) -> list[str]:
    """What makes lengths inexact."""
    short = [] if dialect.ignores_eos else ["it does not know ignore_eos: answers may be shorter"]
    text = (
        []
        if dialect.takes_ids
        else ["it refused token ids: prompts are text, about as long as asked"]
    )
    return [f"the server: {words}" for words in (*short, *text)]


def _late(found: Measured) -> list[str]:
    lag = found.lag
    if lag is None:
        return []
    p50, p99, most = map(format_seconds, (lag.p50, lag.p99, lag.largest))
    return [
        f"requests left {p50} late (p50), {p99} (p99), {most} at most; all times count from when"
        " they were due"
    ]


def _machine(other: float | None) -> str:
    if other is None:
        return "other load: unknown, for the server is not a process of this machine that we see"
    return f"other load: {other:.0%} of this machine's cores"


def rests_on(predicted: Predicted | None) -> list[str]:
    """Of what replicas the prediction is, and how far to trust it."""
    if predicted is None:
        return []
    setup = predicted.setup
    return [
        f"predicted: {setup.model.name} on {predicted.simulation.replicas} x {setup.on},"
        f" {setup.layout}, {setup.precision}; roof: an average request all alone",
        trust(predicted.calibration),
    ]


def plot(page: BenchPage) -> LatencyPlot:
    """Measured and predicted latencies as lines, the SLOs beside them."""
    lines: list[LatencyLine] = []
    for name, times in _times(page.found).items():
        told = of_latency(page.predicted, name)[0]
        if times is not None:
            lines.append(LatencyLine(name.upper(), times.curve))
        if times is not None and told is not None:
            lines.append(LatencyLine(f"{name.upper()} predicted", told.curve, is_prediction=True))
    slos = [(f"{name} SLO", seconds) for name, seconds in page.slo.targets]
    return LatencyPlot(f"{page.dialect.model}: {page.traffic}", lines, slos)


def document(page: BenchPage) -> dict[str, object]:
    """The JSON document."""
    found = page.found
    times = {**_times(found), "lag": found.lag}
    return {
        "version": __version__,
        "url": page.target.url,
        **picked(page.dialect, "model takes_ids ignores_eos"),
        "traffic": page.traffic,
        "seed": int(page.seed),
        **page.slo.document,
        "requests": found.num_requests,
        "sent": found.num_sent,
        "finished": found.num_finished,
        "short": found.num_short,
        **picked(found, "good_share goodput duration_s input_tokens output_tokens"),
        **{name: None if t is None else quantiles(t) for name, t in times.items()},
        **picked(found, "errors other_load"),
        "predicted": predicted_fields(page.predicted),
    }


def predicted_fields(predicted: Predicted | None) -> dict[str, object] | None:
    """The prediction as JSON."""
    if predicted is None:
        return None
    setup = predicted.setup
    fields: dict[str, object] = {
        "model": setup.model.name,
        "on": str(setup.on),
        "layout": str(setup.layout),
        "dtypes": str(setup.precision),
        "replicas": predicted.simulation.replicas,
        "is_calibrated": predicted.calibration is not None,
        "good_share": predicted.simulation.good_share,
    }
    for name in PREDICTED:
        times, roof_s = of_latency(predicted, name)
        fields[name] = None if times is None else {**quantiles(times), "roof_s": roof_s}
    return fields

"""`rooflight simulate`: requests through the real scheduler under a virtual clock."""

import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from rooflight.api.serving import (
    REQUESTS,
    SIMULATED_POLICIES,
    SimulatedPolicy,
    SimulationQuestion,
    simulation_question,
)
from rooflight.api.traffic import read_slo
from rooflight.cli.flags import add_choice, add_on, add_plot, again, keywords
from rooflight.cli.output import picked, print_json, show, suggest, write_file
from rooflight.cli.parser import Namespace, Parser
from rooflight.cli.progress import progress
from rooflight.cli.serving.serving_flags import (
    SERVED,
    add_engine,
    add_replica,
    add_traffic,
    load_of,
    setup_of,
)
from rooflight.hardware.calibration import Calibration
from rooflight.measure.load.tally import Measured
from rooflight.plan.serving.simulate.run import Simulation
from rooflight.plan.serving.simulate.setup import Setup
from rooflight.plan.serving.simulate.tally import (
    EXACT_UP_TO,
    RELATIVE_ERROR,
    PriorityClass,
    Quantiles,
    Slo,
)
from rooflight.ui.answers.serving import trust
from rooflight.ui.svg.latency import LatencyLine, LatencyPlot, latency_svg
from rooflight.ui.text.table import table
from rooflight.units import format_seconds, format_si

GOOD_SHARE = 0.99  # of all requests; less is a finding

HELP = "requests through the real scheduler under a virtual clock: TTFT, TPOT, goodput"


def configure(parser: Parser) -> None:
    parser.add_argument("model", help="a preset such as llama3-8b, or the path of a config.json")
    add_on(parser)
    add_traffic(parser, requests=REQUESTS)
    parser.add_argument(
        "--turns",
        metavar="N",
        help="of a session, in the words of --isl; --rate and --concurrency are of sessions, each"
        " prompt is all that was said before and --isl new tokens",
    )
    parser.add_argument(
        "--think",
        metavar="TIME",
        help="of a tool or a reader between an answer and the next turn: 5s, 5s~1, 1s..30s, exp:5s",
    )
    add_replica(parser)
    parser.add_argument(
        "--host-memory",
        metavar="BYTES",
        help="of each replica, for cached prefixes that leave HBM: 400GB (default none)",
    )
    parser.add_argument(
        "--hit-curve", action="store_true", help="prompt tokens cached, by size of the cache"
    )
    parser.add_argument(
        "--ssd", metavar="BYTES", help="of each replica, for what leaves host memory: 4TB"
    )
    parser.add_argument(
        "--ssd-bandwidth",
        metavar="BYTES",
        help="per second that a replica reads (default 12GB, one NVMe drive); writes in proportion",
    )
    parser.add_argument(
        "--prefill-replicas", help="of these, in policy disaggregated (default: by work)"
    )
    add_choice(
        parser,
        "--policy",
        SIMULATED_POLICIES,
        default="continuous",
        help="how prefill and generate share a replica (continuous by default)",
    )
    parser.add_argument("--compare", action="store_true", help="all policies on the same traffic")
    add_engine(parser)
    add_plot(parser)
    parser.set_examples(
        "rooflight simulate llama3-8b --on v5e:2x4 --dtypes int8/bf16/bf16 --rate 8 --isl 1024"
        " --osl 256 --ttft 1s --tpot 30ms",
        "rooflight simulate llama3.1-70b --on h100:2 --dtypes fp8 --concurrency 32 --isl 1024 --osl"
        " 1024",
        "rooflight simulate llama3-8b --on v5e:2x4 --rate 20 --isl 1024~0.8 --osl 256~0.6"
        " --replicas 3 --compare --requests 2000",
        "rooflight simulate qwen3-32b --on h100:2 --rate 0.2 --turns 20 --think exp:8s --isl 600"
        " --osl 300 --prefix-tokens 8000 --requests 2000 --host-memory 400GB --hit-curve",
    )


def run(args: Namespace) -> int:
    asked = simulation_question(
        setup_of(args),
        load_of(args, default=REQUESTS, most=10**9),
        read_slo(args.ttft, args.tpot),
        **keywords(simulation_question, args),
    )
    others = SIMULATED_POLICIES if args.compare else ()
    found = {p: asked.obstacle(p) or _simulate(asked, p) for p in others if p != args.policy}
    first = _simulate(asked, args.policy)
    page = SimulationPage(
        *(args.model, asked.setup, asked.load.words, asked.slo, args.policy, first),
        asked.calibration,
    )
    compared = {policy: found.get(policy, first) for policy in others}
    if args.plot:
        write_file(args.plot, latency_svg(plot(page)), flag="--plot")
    if args.json:
        print_json("simulate", document(page, compared))
    else:
        show("\n\n".join([text(page), *([comparison(compared)] if compared else [])]))
        if not args.compare:
            suggest(_compare_command(args))
    return 0 if page.meets_slo else 1


def _simulate(asked: SimulationQuestion, policy: SimulatedPolicy) -> Simulation:
    total = asked.load.num_requests
    with progress("requests", "finished") as watch:
        return asked.run(policy, watch=lambda came, done: watch(came, total, done))


def _compare_command(args: Namespace) -> str:
    flags = "dtypes layout rate concurrency turns think isl osl trace requests prefix-tokens"
    flags += " host-memory ssd ssd-bandwidth rows step-tokens ttft tpot"
    replicas = args.replicas if args.replicas != "1" else "2"
    words = [args.model, "--on", args.on, *again(args, (*flags.split(), *SERVED))]
    return shlex.join(["rooflight", "simulate", *words, "--replicas", replicas, "--compare"])


@dataclass(frozen=True, slots=True)
class SimulationPage:
    """A simulation, and what it was of."""

    model: str
    setup: Setup
    traffic: str
    slo: Slo
    policy: str
    found: Simulation
    calibration: Calibration | None  # that the seconds of steps rest on

    @property
    def meets_slo(self) -> bool:
        """True if nearly all requests met the SLO."""
        return self.found.good_share >= GOOD_SHARE


def text(page: SimulationPage) -> str:
    """The answer in a line, then latencies, then what the replicas did."""
    found = page.found
    header = ("", "floor", "mean", "p50", "p95", "p99", "largest", "mean/floor")
    rows = [_row(name, floor, times) for name, floor, times in _latencies(found)]
    rows += _class_rows(found)
    return "\n".join(
        [
            answer(found, page.slo),
            f"{page.model} on {_replicas(page)}, {page.setup.layout}, {page.setup.precision};"
            f" {page.traffic}; {page.policy}",
            *page.setup.told,
            "",
            table(header, rows),
            "",
            f"you pay {found.paid:.2f}x the physics: the floor is a request of average length all"
            " alone on a replica",
            _did(found),
            *_ssd(page),
            _how(found),
            trust(page.calibration),
            *(["", _curve(page)] if found.hits else []),
        ]
    )


def answer(found: Simulation | Measured, slo: Slo) -> str:
    """What became of the requests, in a line."""
    within = f"within {slo}" if slo.targets else "finished"
    return (
        f"{found.good_share:.2%} of {found.num_requests:,} requests {within}:"
        f" {found.goodput:.4g} good requests/s"
    )


def _replicas(page: SimulationPage) -> str:
    count, split = page.found.replicas, page.found.prefill_replicas
    kinds = f" ({split} prefill, {count - split} generate)" if split else ""
    return f"{count} x {page.setup.on}{kinds}"


def _curve(page: SimulationPage) -> str:
    rows = [
        [format_si(p.bytes, "B"), format_si(p.tokens, ""), f"{p.share:.1%}", p.tier or ""]
        for p in hit_points(page)
    ]
    return table(("KV cache", "tokens", "hits", ""), rows)


class HitPoint(NamedTuple):
    """Of the hit-rate curve: a capacity of each replica, and the share of prompt tokens in it."""

    bytes: float
    tokens: float
    share: float
    tier: str | None


def hit_points(page: SimulationPage) -> list[HitPoint]:
    """HBM, with host memory, with the SSD; halves and doubles of HBM up to where it is flat."""
    curve, setup = page.found.hits, page.setup
    if curve is None:
        return []
    limits = setup.limits()
    hbm = float(limits.pool_tokens)
    tiers: dict[float, str | None] = {hbm: "HBM"}
    if setup.sizes.host_bytes:
        tiers[hbm + limits.host_blocks * limits.block_tokens] = "with host memory"
    if limits.ssd_blocks:
        tiers[max(tiers) + limits.ssd_blocks * limits.block_tokens] = "with SSD"
    last = math.ceil(math.log2(max(curve.most_tokens, limits.block_tokens) / hbm))
    doubled: dict[float, str | None] = {hbm * 2.0**k: None for k in range(last - 6, last + 1)}
    points = (
        HitPoint(tokens * setup.token_bytes, tokens, curve.share(tokens), tier)
        for tokens, tier in sorted((doubled | tiers).items())
    )
    return [point for point in points if point.share or point.tier]


def _latencies(found: Simulation) -> list[tuple[str, float | None, Quantiles]]:
    floor = found.floor
    rows = (
        ("TTFT", floor.ttft_s, found.ttft),
        ("TTFT first", None, found.ttft_first if found.ttft_later else None),
        ("TTFT later", None, found.ttft_later),
        ("TPOT", floor.tpot_s, found.tpot),
        ("E2E", floor.e2e_s, found.e2e),
    )
    return [(name, least, times) for name, least, times in rows if times is not None]


def _class_rows(found: Simulation) -> list[list[str]]:
    """Latencies of each priority, the first to go first; of many, three from either end."""
    first, rest = found.by_priority[:3], found.by_priority[3:]
    return [
        _row(f"{name} class {one.priority}", None, times)
        for name, key in (("TTFT", "ttft"), ("TPOT", "tpot"), ("E2E", "e2e"))
        for one in (*first, *rest[-3:])
        if (times := getattr(one, key))
    ]


def _row(name: str, floor_s: float | None, times: Quantiles) -> list[str]:
    seconds = (times.mean, times.p50, times.p95, times.p99, times.largest)
    ratio = f"{times.mean / floor_s:.2f}x" if floor_s else ""
    floor = "" if floor_s is None else format_seconds(floor_s)
    return [name, floor, *(format_seconds(s) for s in seconds), ratio]


def _did(found: Simulation) -> str:
    restored = found.restored_tokens / max(1, found.input_tokens)
    host = f", {restored:.0%} in host memory" if restored else ""
    return (
        f"{format_si(_tokens_per_s(found), 'tokens/s')} out, {found.mean_rows:.1f} sequences per"
        f" decode step, replicas {found.busy_share:.0%} busy; {found.preemptions:,} preemptions,"
        f" {found.num_rejected:,} rejected, {found.cached_share:.0%} of prompt tokens cached{host}"
    )


def _ssd(page: SimulationPage) -> list[str]:
    """What the SSD of a replica did, and what it would write in a day: drives wear out."""
    found, each_s = page.found, page.setup.token_bytes / (page.found.duration_s or 1.0)
    each_s /= found.replicas
    written = found.ssd_written_tokens * each_s
    return (
        []
        if not page.setup.sizes.ssd_bytes
        else [
            f"SSD of a replica: {format_si(found.ssd_read_tokens * each_s, 'B/s')} read,"
            f" {format_si(written, 'B/s')} written ({format_si(86400 * written, 'B')} in a day);"
            f" {found.ssd_read_tokens / max(1, found.input_tokens):.0%} of prompt tokens"
        ]
    )


def _tokens_per_s(found: Simulation) -> float:
    return found.output_tokens / found.duration_s if found.duration_s else 0.0


def _how(found: Simulation) -> str:
    exact = found.num_finished <= EXACT_UP_TO
    error = "exact" if exact else f"within {RELATIVE_ERROR:.1%} (bounded memory)"
    return f"{found.steps:,} steps over {found.duration_s:,.0f} s; quantiles {error}"


def comparison(found: Mapping[str, Simulation | str]) -> str:
    """A row a policy on the same traffic; those that cannot be, with the reason, below."""
    header = ("policy", "good", "tokens/s", "TTFT p50", "p99", "TPOT p50", "p99", "E2E p50", "p99")
    header += ("paid",)
    rows = [[name, *_cells(s)] for name, s in found.items() if isinstance(s, Simulation)]
    reasons = [reason for reason in found.values() if isinstance(reason, str)]
    return "\n".join([table(header, rows), *reasons])


def _cells(found: Simulation) -> list[str]:
    times = [
        format_seconds(seconds) if quantiles else ""
        for quantiles in (found.ttft, found.tpot, found.e2e)
        for seconds in ((quantiles.p50, quantiles.p99) if quantiles else (0.0, 0.0))
    ]
    tokens = format_si(_tokens_per_s(found), "")
    return [f"{found.good_share:.1%}", tokens, *times, f"{found.paid:.2f}x"]


def plot(page: SimulationPage) -> LatencyPlot:
    """The latencies as lines, the SLOs beside them."""
    return LatencyPlot(
        title=f"{page.model} on {_replicas(page)}: {page.traffic}",
        lines=[LatencyLine(name, times.curve) for name, _, times in _latencies(page.found)],
        slos=[(f"{name} SLO", seconds) for name, seconds in page.slo.targets],
    )


def document(page: SimulationPage, others: Mapping[str, Simulation | str]) -> dict[str, object]:
    """The JSON document."""
    setup, known = page.setup, page.calibration
    compared = {
        name: summary(other) if isinstance(other, Simulation) else {"impossible": other}
        for name, other in others.items()
    }
    fields: dict[str, object] = {
        "model": page.model,
        "on": str(setup.on),
        "layout": str(setup.layout),
        "dtypes": str(setup.precision),
        **setup.document,
        "traffic": page.traffic,
        "policy": page.policy,
        "calibration": f"{known.engine} on {known.chip}" if known else None,
        "spread": known.spread if known else None,
        **page.slo.document,
        **summary(page.found),
    }
    if page.found.hits:
        fields["hit_curve"] = [point._asdict() for point in hit_points(page)]
    return fields | ({"compare": compared} if compared else {})


def summary(found: Simulation) -> dict[str, object]:
    """A simulation as JSON."""
    floor = found.floor
    return {
        "requests": found.num_requests,
        "finished": found.num_finished,
        "rejected": found.num_rejected,
        **picked(
            found,
            "good_share goodput duration_s input_tokens output_tokens cached_tokens replicas"
            " restored_tokens ssd_read_tokens ssd_written_tokens prefill_replicas busy_share"
            " mean_rows steps preemptions",
        ),
        "floor": {"ttft_s": floor.ttft_s, "tpot_s": floor.tpot_s, "e2e_s": floor.e2e_s},
        "paid": found.paid,
        **{
            name.lower().replace(" ", "_"): quantiles(times) for name, _, times in _latencies(found)
        },
        **({"classes": [_class(one) for one in found.by_priority]} if found.by_priority else {}),
    }


def _class(one: PriorityClass) -> dict[str, object]:
    """A priority as JSON."""
    times = {"ttft": one.ttft, "tpot": one.tpot, "e2e": one.e2e}
    return {
        **picked(one, "priority num_finished num_rejected good_share"),
        **{name: quantiles(found) for name, found in times.items() if found},
    }


def quantiles(times: Quantiles) -> dict[str, float]:
    """As JSON."""
    names = ("mean", "p50", "p95", "p99", "largest")
    return {f"{name}_s": getattr(times, name) for name in names}

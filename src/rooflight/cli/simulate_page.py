"""What `rooflight simulate` shows: the answer, latencies beside their floor, a comparison."""

from collections.abc import Mapping
from dataclasses import dataclass

from rooflight.hardware.calibration import Calibration
from rooflight.measure.load.tally import Measured
from rooflight.plan.serving.simulate.quantiles import EXACT_UP_TO, RELATIVE_ERROR, Quantiles
from rooflight.plan.serving.simulate.run import Simulation
from rooflight.plan.serving.simulate.setup import Setup
from rooflight.plan.serving.simulate.tally import Slo
from rooflight.ui.answers.serving import trust
from rooflight.ui.svg.latency import LatencyLine, LatencyPlot
from rooflight.ui.text.table import table
from rooflight.units import format_seconds, format_si

GOOD_SHARE = 0.99  # of all requests; less is a finding


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
    return "\n".join(
        [
            answer(found, page.slo),
            f"{page.model} on {_replicas(page)}, {page.setup.layout}, {page.setup.precision};"
            f" {page.traffic}; {page.policy}",
            "",
            table(header, rows),
            "",
            f"you pay {found.paid:.2f}x the physics: the floor is a request of average length all"
            " alone on a replica",
            _did(found),
            _how(found),
            trust(page.calibration),
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
    count = page.found.replicas
    split = page.found.prefill_replicas
    kinds = f" ({split} prefill, {count - split} generate)" if split else ""
    return f"{count} x {page.setup.on}{kinds}"


def _latencies(found: Simulation) -> list[tuple[str, float, Quantiles]]:
    floor = found.floor
    rows = (
        ("TTFT", floor.ttft_s, found.ttft),
        ("TPOT", floor.tpot_s, found.tpot),
        ("E2E", floor.e2e_s, found.e2e),
    )
    return [(name, least, times) for name, least, times in rows if times is not None]


def _row(name: str, floor_s: float, times: Quantiles) -> list[str]:
    seconds = (floor_s, times.mean, times.p50, times.p95, times.p99, times.largest)
    ratio = f"{times.mean / floor_s:.2f}x" if floor_s else ""
    return [name, *(format_seconds(s) for s in seconds), ratio]


def _did(found: Simulation) -> str:
    return (
        f"{format_si(_tokens_per_s(found), 'tokens/s')} out, {found.mean_rows:.1f} rows a decode"
        f" step, replicas {found.busy_share:.0%} busy; {found.preemptions:,} preemptions,"
        f" {found.num_rejected:,} rejected, {found.cached_share:.0%} of prompt tokens cached"
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
    return [
        f"{found.good_share:.1%}",
        format_si(_tokens_per_s(found), ""),
        *times,
        f"{found.paid:.2f}x",
    ]


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
        "traffic": page.traffic,
        "policy": page.policy,
        "calibration": f"{known.engine} on {known.chip}" if known else None,
        "spread": known.spread if known else None,
        **page.slo.document,
        **summary(page.found),
    }
    return fields | ({"compare": compared} if compared else {})


def summary(found: Simulation) -> dict[str, object]:
    """A simulation as JSON."""
    floor = found.floor
    return {
        "requests": found.num_requests,
        "finished": found.num_finished,
        "rejected": found.num_rejected,
        "good_share": found.good_share,
        "goodput": found.goodput,
        "duration_s": found.duration_s,
        "input_tokens": found.input_tokens,
        "output_tokens": found.output_tokens,
        "cached_tokens": found.cached_tokens,
        "replicas": found.replicas,
        "prefill_replicas": found.prefill_replicas,
        "busy_share": found.busy_share,
        "mean_rows": found.mean_rows,
        "steps": found.steps,
        "preemptions": found.preemptions,
        "floor": {"ttft_s": floor.ttft_s, "tpot_s": floor.tpot_s, "e2e_s": floor.e2e_s},
        "paid": found.paid,
        **{name.lower(): quantiles(times) for name, _, times in _latencies(found)},
    }


def quantiles(times: Quantiles) -> dict[str, float]:
    """As JSON."""
    return {
        "mean_s": times.mean,
        "p50_s": times.p50,
        "p95_s": times.p95,
        "p99_s": times.p99,
        "largest_s": times.largest,
    }

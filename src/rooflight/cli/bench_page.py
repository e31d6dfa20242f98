"""What `rooflight bench` shows: the answer, latencies beside their prediction, what disturbed."""

from dataclasses import dataclass

from rooflight import __version__
from rooflight.cli.output import picked
from rooflight.cli.simulate import GOOD_SHARE, answer, quantiles
from rooflight.measure.load.machine import HIGH
from rooflight.measure.load.predict import Predicted
from rooflight.measure.load.tally import Measured
from rooflight.measure.load.target import Dialect, Target
from rooflight.plan.serving.simulate.tally import Quantiles, Slo
from rooflight.ui.answers.serving import trust
from rooflight.ui.svg.latency import LatencyLine, LatencyPlot
from rooflight.ui.text.table import table
from rooflight.units import format_seconds, format_si

PREDICTED = ("ttft", "tpot", "e2e")


@dataclass(frozen=True, slots=True)
class BenchPage:
    """A measurement, and what it was of."""

    target: Target
    dialect: Dialect
    traffic: str
    seed: str
    slo: Slo
    found: Measured
    other_load: float | None
    predicted: Predicted | None

    @property
    def meets_slo(self) -> bool:
        """True if nearly all requests met the SLO."""
        return self.found.good_share >= GOOD_SHARE


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
        *_errors(found),
        *_asked(page.dialect),
        *_late(found),
        _machine(page.other_load),
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


def _errors(found: Measured) -> list[str]:
    return [
        f"error: {count:,} x {kind}, such as: {' '.join(found.said[kind].split())}"
        for kind, count in found.errors.items()
    ]


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
    warning = "; too much: end it and measure again" if other > HIGH else ""
    return f"other load: {other:.0%} of this machine's cores{warning}"


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
        **picked(found, "good_share goodput duration_s input_tokens output_tokens"),
        **{name: None if t is None else quantiles(t) for name, t in times.items()},
        "errors": found.errors,
        "other_load": page.other_load,
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

"""What `rooflight bench --dry-run` shows: the traffic of a run that is not sent."""

from collections import Counter
from collections.abc import Sequence

from rooflight.api.traffic import TrafficLoad
from rooflight.cli.bench_page import PREDICTED, of_latency, predicted_fields, rests_on
from rooflight.measure.load.predict import Predicted
from rooflight.plan.serving.simulate.arrivals import Arrival
from rooflight.ui.text.table import table
from rooflight.units import format_seconds


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

"""Traffic as people write it: a rate and lengths, or a recorded trace; and what was promised."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from rooflight.api.values import Count, Number, promised_s
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
from rooflight.units import positive, whole

_MOST_SEED = 10**9
_MOST_PREFIXES = 10**6
_MOST_OPEN = 10**6
_ROUNDS, _FEWEST = 10, 200  # requests of each client, as benchmarks send them; of all


@dataclass(frozen=True, slots=True)
class TrafficLoad:
    """Requests that can be streamed again and again, how many, and their mean lengths."""

    arrivals: Callable[[], Iterator[Arrival]]
    num_requests: int
    input_tokens: int
    output_tokens: int
    words: str
    concurrency: int | None = None  # clients that send one request after another


def read_slo(ttft: Number | None, tpot: Number | None) -> Slo:
    """The SLO; infinite where there is none."""
    return Slo(promised_s(ttft, "--ttft"), promised_s(tpot, "--tpot"))


def read_traffic(
    *,
    rate: Number | None,
    isl: Count | None,
    osl: Count | None,
    concurrency: Count | None = None,
    burstiness: Number = 1,
    prefix_tokens: Count | None = None,
    prefixes: Count = 1,
    trace: str | Path | None = None,
    requests: Count | None = None,
    seed: Count = 0,
    default: int,
    most: int,
) -> TrafficLoad:
    """Random or recorded requests: `default` of them unless said, never above `most`."""
    asked = None if requests is None else whole("--requests", requests, most=most)
    own = {"--rate": rate, "--isl": isl, "--osl": osl}
    clients = None if concurrency is None else whole("--concurrency", concurrency, most=_MOST_OPEN)
    if trace:
        _refuse(own | {"--prefix-tokens": prefix_tokens, "--concurrency": concurrency})
        return _recorded(Path(trace), asked or most)
    if clients:
        if rate is not None:
            raise UsageError(
                "--concurrency sends when an answer is there; --rate would be ignored",
                hint="leave out one of them",
            )
        rate = own["--rate"] = "inf"
        default = min(max(_ROUNDS * clients, _FEWEST), most)
    if rate is None or isl is None or osl is None:
        missing = next(flag for flag, value in own.items() if value is None)
        raise UsageError(
            f"no traffic: {missing} is missing",
            hint="give --rate 20 (or --concurrency 64) --isl 1024 --osl 256, or --trace FILE",
        )
    is_at_once = str(rate) == "inf"
    traffic = RandomTraffic(
        1.0 if is_at_once else positive("--rate", rate),
        parse_lengths(str(isl), what="--isl"),
        parse_lengths(str(osl), what="--osl"),
        asked or default,
        burstiness=positive("--burstiness", burstiness),
        seed=whole("--seed", seed, least=0, most=_MOST_SEED),
    )
    shared = whole("--prefix-tokens", prefix_tokens or 0, least=0, most=10**7)
    alike = whole("--prefixes", prefixes, most=_MOST_PREFIXES)

    def arrivals() -> Iterator[Arrival]:
        drawn = at_once(traffic.arrivals()) if is_at_once else traffic.arrivals()
        if not shared:
            return drawn
        return with_prefixes(drawn, prefixes=alike, tokens=shared, seed=traffic.seed)

    words = "all at once" if is_at_once else f"{traffic.rate:g} requests/s"
    words = f"{clients} open at all times" if clients else words
    words += f", {traffic.input} in, {traffic.output} out"
    words += f", {alike} shared x {shared} tokens" if shared else ""
    means = max(1, round(traffic.input.mean)), max(1, round(traffic.output.mean))
    return TrafficLoad(arrivals, traffic.num_requests, *means, words, clients)


def _refuse(of_a_trace: dict[str, Number | None]) -> None:
    """What a file says itself."""
    given = [flag for flag, value in of_a_trace.items() if value]
    if given:
        raise UsageError(
            f"--trace has its own arrivals and lengths; {given[0]} would be ignored",
            hint=f"leave out {given[0]}, or --trace",
        )


def _recorded(path: Path, first: int) -> TrafficLoad:
    trace = RequestTrace(path)
    count = inputs = outputs = 0
    for arrival in islice(trace.arrivals(), first):
        count += 1
        inputs, outputs = inputs + arrival.input_tokens, outputs + arrival.output_tokens
    means = max(1, inputs // count), max(1, outputs // count)
    words = f"{path.name}, {means[0]} in, {means[1]} out on average"
    return TrafficLoad(lambda: islice(trace.arrivals(), first), count, *means, words)

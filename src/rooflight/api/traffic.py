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
from rooflight.plan.serving.simulate.turns import parse_think, with_turns
from rooflight.units import positive, whole

_MOST_SEED = 10**9
_MOST_PREFIXES = 10**6
_MOST_OPEN = 10**6
_TURNS = "add --turns 8, or leave it out"
_ROUNDS, _FEWEST = 10, 200  # requests of each client, as benchmarks send them; of all


@dataclass(frozen=True, slots=True)
class TrafficLoad:
    """Requests that can be streamed again and again, how many, and their mean lengths."""

    arrivals: Callable[[], Iterator[Arrival]]
    num_requests: int
    input_tokens: int
    output_tokens: int
    words: str
    concurrency: int | None = None  # clients that send one request, or session, after another
    has_turns: bool = False  # that wait for the answer before


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
    turns: Count | None = None,
    think: Number | None = None,
    trace: str | Path | None = None,
    requests: Count | None = None,
    seed: Count = 0,
    default: int,
    most: int,
) -> TrafficLoad:
    """Random or recorded requests: `default` of them unless said, never above `most`.

    With `turns` a rate, or clients, are of sessions, and lengths of each turn; `think` is what lies
    between an answer and the next turn.
    """
    asked = None if requests is None else whole("--requests", requests, most=most)
    own = {"--rate": rate, "--isl": isl, "--osl": osl}
    clients = None if concurrency is None else whole("--concurrency", concurrency, most=_MOST_OPEN)
    if trace:
        _refuse(own | {"--prefix-tokens": prefix_tokens, "--concurrency": concurrency})
        _refuse({"--turns": turns, "--think": think})
        return _recorded(Path(trace), asked or most)
    if clients:
        if rate is not None:
            raise UsageError(
                "--concurrency sends when an answer is there; --rate would be ignored",
                hint="leave out one of them",
            )
        rate = own["--rate"] = "inf"
        default = max(_ROUNDS * clients, _FEWEST)
    several = None if turns is None else parse_lengths(str(turns), what="--turns")
    if several is None and think is not None:
        raise UsageError("--think is between turns; without them it would be ignored", hint=_TURNS)
    mean_turns = max(1.0, several.mean) if several else 1.0
    if clients:
        default = min(round(default * mean_turns), most)
    pause = None if think is None else parse_think(str(think), what="--think")
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
        max(1, round((asked or default) / mean_turns)),
        burstiness=positive("--burstiness", burstiness),
        seed=whole("--seed", seed, least=0, most=_MOST_SEED),
    )
    shared = whole("--prefix-tokens", prefix_tokens or 0, least=0, most=10**7)
    alike = whole("--prefixes", prefixes, most=_MOST_PREFIXES)

    def arrivals() -> Iterator[Arrival]:
        drawn = at_once(traffic.arrivals()) if is_at_once else traffic.arrivals()
        if shared and several:  # before the tokens of the first turn
            drawn = (a._replace(input_tokens=a.input_tokens + shared) for a in drawn)
        if shared:
            drawn = with_prefixes(drawn, prefixes=alike, tokens=shared, seed=traffic.seed)
        if not several:
            return drawn
        lengths = traffic.input, traffic.output
        return with_turns(drawn, *lengths, turns=several, think=pause, seed=traffic.seed)

    words = "all at once" if is_at_once else f"{traffic.rate:g} requests/s"
    words = f"{clients} open at all times" if clients else words
    if several:
        words = words.replace("requests", "sessions").replace("open", "sessions open")
        words += f", {several} turns {think or 0} apart"
    words += f", {traffic.input} in, {traffic.output} out"
    words += f", {alike} shared x {shared} tokens" if shared else ""
    made = max(1, round(traffic.output.mean))
    history = (mean_turns - 1) / 2 * (traffic.input.mean + made) + (shared if several else 0)
    prompt = max(1, round(traffic.input.mean + history))
    count = round(traffic.num_requests * mean_turns)
    return TrafficLoad(arrivals, count, prompt, made, words, clients, several is not None)


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
    has_turns = False
    for arrival in islice(trace.arrivals(), first):
        count += 1
        has_turns = has_turns or arrival.turn > 1
        inputs, outputs = inputs + arrival.input_tokens, outputs + arrival.output_tokens
    means = max(1, inputs // count), max(1, outputs // count)
    words = f"{path.name}, {means[0]} in, {means[1]} out on average"
    return TrafficLoad(
        lambda: islice(trace.arrivals(), first), count, *means, words, has_turns=has_turns
    )

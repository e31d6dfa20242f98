"""`Demand`: the traffic that a fleet must serve, and its SLO.

In: a rate, lengths, a hit rate of the prefix cache, an SLO and the share of requests that must keep
it. Out: streams of arrivals for simulations of a fleet or of a part of it.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from random import Random
from statistics import NormalDist

from rooflight.errors import UsageError
from rooflight.plan.serving.fleet.bound import RequestWork, work_of
from rooflight.plan.serving.simulate.arrivals import Arrival, Lengths, RandomTraffic
from rooflight.plan.serving.simulate.run import Simulation
from rooflight.plan.serving.simulate.tally import Slo

_LEAST_REQUESTS = 1000
_MOST_REQUESTS = 10_000
_LIVES = 20  # of a request as long as the SLO, that a stream lasts: less hides a growing queue
NORMAL_80 = NormalDist().inv_cdf(0.9)  # deviations that hold 80 % of a normal spread
_ALONE_S = 1e4  # between requests that never meet


@dataclass(frozen=True, slots=True)
class DemandClass:
    """A part of a demand with a priority, the smallest first, and an SLO of its own."""

    priority: int
    rate: float
    input: Lengths
    output: Lengths
    slo: Slo


@dataclass(frozen=True, slots=True)
class Demand:
    """Requests per second of these lengths, of which `percentile` % must be served within `slo`.

    A forecast is as often too low as too high: a fleet sized by it keeps its SLO with even chances.
    `confidence` asks for more: times are as much longer as held-out rows say.
    """

    rate: float
    input: Lengths
    output: Lengths
    slo: Slo
    percentile: float = 95.0
    confidence: float = 50.0  # %, that a latency keeps its SLO
    hit_rate: float = 0.0  # of prompt tokens, those that all requests share and the cache holds
    burstiness: float = 1.0
    seed: int = 0
    num_requests: int | None = None  # simulated at a time; None is as many as the SLO needs
    classes: tuple[DemandClass, ...] = ()  # that add up to it; none where all requests are alike

    def __post_init__(self) -> None:
        if not 50 <= self.confidence < 100:
            raise UsageError(
                f"a confidence of {self.confidence:g}: out of range",
                hint="from 50, the forecast itself, to below 100",
            )
        if not (0 < self.percentile < 100 and 0 <= self.hit_rate < 1):
            raise UsageError(
                f"percentile {self.percentile:g}, hit rate {self.hit_rate:g}: out of range",
                hint="percentile above 0 and below 100, hit rate from 0 to below 1",
            )

    def __str__(self) -> str:
        cached = f", {self.hit_rate:.0%} cached" if self.hit_rate else ""
        if self.classes:
            return f"{self.rate:g} requests/s of {len(self.classes)} priorities{cached}"
        within = f"; {self.percentile:g}% within {self.slo}" if self.slo.targets else ""
        return f"{self.rate:g} requests/s, {self.input} in{cached}, {self.output} out{within}"

    @property
    def share(self) -> float:
        """The share of requests that must meet the SLO."""
        return self.percentile / 100

    def slack(self, spread: float) -> float:
        """How many times a predicted latency must fit into its SLO; 80 % of rows are in `spread`.

        Logs of errors are taken to be normal; at 90 % it is the end of the interval.
        """
        return math.exp(spread * NormalDist().inv_cdf(self.confidence / 100) / NORMAL_80)

    def requests(self, rate: float) -> int:
        """How many a simulation at this rate takes."""
        if self.num_requests is not None:
            return self.num_requests
        slo = self.slo
        times = (slo.ttft_s, self.output.mean * slo.tpot_s)
        life_s = sum(s for s in times if s < math.inf)
        tail = 50 / (1 - self.share)  # so that enough of them are late
        return int(min(max(_LEAST_REQUESTS, tail, _LIVES * life_s * rate), _MOST_REQUESTS))

    def arrivals(self, rate: float) -> Iterator[Arrival]:
        """A stream at exactly this rate: the drawn times are stretched to fit."""
        count = self.requests(rate)
        drawn = self._drawn(rate, count)
        stretch = count / rate / drawn[-1].time_s
        return (arrival._replace(time_s=arrival.time_s * stretch) for arrival in drawn)

    def alone(self) -> Iterator[Arrival]:
        """The same requests, each all alone: no fleet serves them better."""
        drawn = self._drawn(self.rate, self.requests(self.rate))
        return (arrival._replace(time_s=i * _ALONE_S) for i, arrival in enumerate(drawn))

    def is_kept(self, found: Simulation, unsure: float = 0.0) -> bool:
        """True if enough requests met the SLO, of every class."""
        parts = found.by_priority if self.classes else ()
        least = min((part.good_share for part in parts), default=found.good_share)
        return min(least, found.good_share) >= self.share - unsure

    @property
    def warm(self) -> Arrival | None:
        """The prompt that shares most, of which the shared part is cached at all times."""
        if not self.hit_rate:
            return None
        drawn = self._drawn(self.rate, self.requests(self.rate))
        return max(drawn, key=lambda arrival: arrival.segment_tokens)

    def work(self) -> RequestWork:
        """The mean request."""
        return _work(self._mix(self.rate, self.requests(self.rate)), self.hit_rate, self.share)

    def scaled(self, **factors: float) -> "Demand":
        """With `rate`, `input` or `output` times a factor."""
        lengths = {name: _longer(getattr(self, name), factors.get(name, 1.0)) for name in _LENGTHS}
        more = factors.get("rate", 1.0)
        classes = tuple(
            replace(
                one,
                rate=one.rate * more,
                input=_longer(one.input, factors.get("input", 1.0)),
                output=_longer(one.output, factors.get("output", 1.0)),
            )
            for one in self.classes
        )
        return replace(self, rate=self.rate * more, classes=classes, **lengths)

    def _drawn(self, rate: float, count: int) -> tuple[Arrival, ...]:
        return _drawn(self._mix(rate, count), self.hit_rate)

    def _mix(self, rate: float, count: int) -> "_Mix":
        """Of each class the whole stream, of which a share is taken: its times are the same."""
        alike = DemandClass(0, self.rate, self.input, self.output, self.slo)
        own = self.burstiness, self.seed
        return tuple(
            (RandomTraffic(rate, one.input, one.output, count, *own), one.priority, one.rate)
            for one in self.classes or (alike,)
        )


_LENGTHS = ("input", "output")


_Mix = tuple[tuple[RandomTraffic, int, float], ...]  # traffic, priority, rate of a class


@lru_cache(maxsize=8)
def _drawn(mix: _Mix, hit_rate: float) -> tuple[Arrival, ...]:
    drawn = _mixed(mix)
    return tuple(_sharing(arrival, hit_rate) for arrival in drawn) if hit_rate else tuple(drawn)


def _mixed(mix: _Mix) -> Iterator[Arrival]:
    if len(mix) == 1:
        yield from mix[0][0].arrivals()
        return
    random = Random(mix[0][0].seed)
    at, rates = range(len(mix)), [rate for _, _, rate in mix]
    for of_each in zip(*(traffic.arrivals() for traffic, _, _ in mix), strict=True):
        one = random.choices(at, rates)[0]
        yield of_each[one]._replace(priority=mix[one][1])


@lru_cache(maxsize=8)
def _work(mix: _Mix, hit_rate: float, share: float) -> RequestWork:
    return work_of(_drawn(mix, hit_rate), share=share)


def _sharing(arrival: Arrival, hit_rate: float) -> Arrival:
    """The beginning of the prompt is the same in all requests; its last token never is."""
    shared = min(int(arrival.input_tokens * hit_rate), arrival.input_tokens - 1)
    return arrival._replace(segments=(0,), segment_tokens=shared) if shared else arrival


def _longer(lengths: Lengths, factor: float) -> Lengths:
    if factor == 1:
        return lengths
    low, high = (max(1, round(n * factor)) for n in (lengths.low, lengths.high))
    return replace(lengths, mean=lengths.mean * factor, low=low, high=high)

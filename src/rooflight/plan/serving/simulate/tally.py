"""`Tally`: what became of the requests of a simulation, in bounded memory.

Mean and quantiles of a long stream of numbers in bounded memory. Exact up to 16,384 numbers;
beyond, a histogram with bins 1 % wide, whose quantiles are within 0.5 % of a number of the stream.
Zero has a bin of its own; below 1 ns is the same bin as 1 ns.
"""

import math
from collections import Counter
from dataclasses import dataclass

import numpy as np

from rooflight.plan.serving.simulate.arrivals import Floats
from rooflight.plan.serving.simulate.replica import Ticket
from rooflight.units import format_seconds

EXACT_UP_TO = 1 << 14
RELATIVE_ERROR = 0.005
_SMALLEST = 1e-9
_WIDTH = float(np.log1p(RELATIVE_ERROR) - np.log1p(-RELATIVE_ERROR))
_BINS = 1 + int(np.log(1e18) / _WIDTH)  # from a nanosecond to thirty years

_BLOCK = 1 << 13


@dataclass(frozen=True, slots=True)
class Quantiles:
    """What is told of a distribution."""

    count: int
    mean: float
    largest: float
    curve: tuple[float, ...]  # at 1 %, 2 % ... 99 %

    def at(self, percentile: float) -> float:
        """What so many percent are at most; above 99 the largest."""
        percent = max(1, math.ceil(percentile))
        return self.curve[percent - 1] if percent <= 99 else self.largest

    @property
    def p50(self) -> float:
        return self.curve[49]

    @property
    def p95(self) -> float:
        return self.curve[94]

    @property
    def p99(self) -> float:
        return self.curve[98]


class QuantileSketch:
    """Takes blocks of numbers, none negative."""

    __slots__ = ("_bins", "_count", "_exact", "_largest", "_sum")

    def __init__(self) -> None:
        self._count, self._sum, self._largest = 0, 0.0, 0.0
        self._exact: list[Floats] | None = []
        self._bins = np.zeros(_BINS + 1, dtype=np.int64)

    def add(self, values: Floats) -> None:
        if not values.size:
            return
        self._count += values.size
        self._sum += float(values.sum())
        self._largest = max(self._largest, float(values.max()))
        places = np.log(np.maximum(values, _SMALLEST) / _SMALLEST) / _WIDTH + 1
        places = np.where(values > 0, np.minimum(places, _BINS), 0).astype(np.int64)
        self._bins += np.bincount(places, minlength=_BINS + 1)
        if self._exact is not None:
            self._exact.append(values)
            if self._count > EXACT_UP_TO:
                self._exact = None

    def summary(self) -> Quantiles | None:
        """None of nothing."""
        if not self._count:
            return None
        return Quantiles(self._count, self._sum / self._count, self._largest, self._curve())

    def _curve(self) -> tuple[float, ...]:
        """For each percent the smallest number with at least so much of the stream up to it."""
        ranks = -(-np.arange(1, 100) * self._count // 100)  # of the sorted stream, from 1
        if self._exact is not None:
            return tuple(np.sort(np.concatenate(self._exact))[ranks - 1].tolist())
        places = np.searchsorted(np.cumsum(self._bins), ranks)
        middles = _SMALLEST * np.exp((places - 1) * _WIDTH) * (1 + RELATIVE_ERROR)
        return tuple(np.where(places > 0, np.minimum(middles, self._largest), 0.0).tolist())


_NO_SKETCHES = (QuantileSketch(), QuantileSketch(), QuantileSketch())


@dataclass(frozen=True, slots=True)
class Slo:
    """What a user may expect: seconds to the first token, and between tokens on average."""

    ttft_s: float = math.inf
    tpot_s: float = math.inf

    @property
    def targets(self) -> list[tuple[str, float]]:
        """By name, those that are set."""
        both = (("TTFT", self.ttft_s), ("TPOT", self.tpot_s))
        return [(name, seconds) for name, seconds in both if seconds < math.inf]

    @property
    def document(self) -> dict[str, float | None]:
        made = dict(self.targets)
        return {"ttft_s": made.get("TTFT"), "tpot_s": made.get("TPOT")}

    def __str__(self) -> str:
        return " and ".join(f"{name} {format_seconds(s)}" for name, s in self.targets)


@dataclass(frozen=True, slots=True)
class Latencies:
    """Of all finished requests; TPOT of those that made two tokens or more."""

    ttft: Quantiles | None
    tpot: Quantiles | None
    e2e: Quantiles | None
    ttft_first: Quantiles | None  # of first turns, where there are sessions
    ttft_later: Quantiles | None


@dataclass(frozen=True, slots=True)
class PriorityClass:
    """What became of the requests of one priority; the smallest goes first."""

    priority: int
    num_finished: int
    num_rejected: int
    num_good: int
    ttft: Quantiles | None
    tpot: Quantiles | None
    e2e: Quantiles | None

    @property
    def good_share(self) -> float:
        """Of all that came."""
        return self.num_good / (self.num_finished + self.num_rejected)


class Tally:
    """Collects latencies block by block, and counts who met the SLO."""

    def __init__(self, slo: Slo) -> None:
        self.slo = slo
        self.num_arrived = self.num_rejected = self.num_finished = self.num_good = 0
        self.num_late = 0  # as soon as they finish; the others are counted block by block
        self.input_tokens = self.output_tokens = 0
        self.end_s = 0.0
        self._sketches = tuple(QuantileSketch() for _ in range(5))
        self._times: tuple[list[float], list[float], list[float]] = ([], [], [])
        self._gaps: list[int] = []
        self._turns: list[int] = []  # 0 of what is no session
        self._priorities: list[int] = []
        self._classes: dict[int, tuple[QuantileSketch, ...]] = {}
        self._done, self._good, self._rejected = Counter[int](), Counter[int](), Counter[int]()

    def finish(self, ticket: Ticket, end_s: float) -> None:
        """A request has all its tokens."""
        arrival = ticket.arrival
        arrivals, firsts, ends = self._times
        arrivals.append(arrival.time_s)
        firsts.append(ticket.first_s)
        ends.append(end_s)
        gaps = arrival.output_tokens - 1
        self._gaps.append(gaps)
        self._turns.append(arrival.turn if arrival.session >= 0 else 0)
        self._priorities.append(arrival.priority)
        self.input_tokens += arrival.input_tokens
        tpot_s = (end_s - ticket.first_s) / max(gaps, 1)
        if ticket.first_s - arrival.time_s > self.slo.ttft_s or tpot_s > self.slo.tpot_s:
            self.num_late += 1
        if len(ends) == _BLOCK:
            self._flush()

    def reject(self, ticket: Ticket) -> None:
        """A request finds no place."""
        self.num_rejected += 1
        self._rejected[ticket.arrival.priority] += 1

    def _flush(self) -> None:
        arrived, first, end = (np.array(times) for times in self._times)
        gaps, turns = np.array(self._gaps), np.array(self._turns)
        if not gaps.size:
            return
        ttft, tpot = first - arrived, (end - first) / np.maximum(gaps, 1)
        by_turn = ttft[turns == 1], ttft[turns > 1]
        taken = ttft, tpot[gaps > 0], end - arrived, *by_turn
        for sketch, values in zip(self._sketches, taken, strict=True):
            sketch.add(values)
        good, priorities = (ttft <= self.slo.ttft_s) & (tpot <= self.slo.tpot_s), self._priorities
        self.num_good += int(good.sum())
        for one in set(priorities):
            own = np.array(priorities) == one
            sketches = self._classes.setdefault(one, tuple(QuantileSketch() for _ in range(3)))
            parts = ttft[own], tpot[own & (gaps > 0)], (end - arrived)[own]
            for sketch, values in zip(sketches, parts, strict=True):
                sketch.add(values)
            self._done[one] += int(own.sum())
            self._good[one] += int(good[own].sum())
        self.num_finished += gaps.size
        self.output_tokens += int(gaps.sum()) + gaps.size
        self.end_s = max(self.end_s, float(end.max()))
        for values in (*self._times, self._gaps, self._turns, self._priorities):
            values.clear()

    def latencies(self) -> Latencies:
        self._flush()
        return Latencies(*(sketch.summary() for sketch in self._sketches))

    def by_priority(self) -> tuple[PriorityClass, ...]:
        """Class by class, the first to go first; none where all requests are of one."""
        self._flush()
        found = sorted(self._done | self._rejected)
        return tuple(self._class(one) for one in found if len(found) > 1)

    def _class(self, one: int) -> PriorityClass:
        ttft, tpot, e2e = (s.summary() for s in self._classes.get(one, _NO_SKETCHES))
        counts = self._done[one], self._rejected[one], self._good[one]
        return PriorityClass(one, *counts, ttft, tpot, e2e)

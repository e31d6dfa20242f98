"""`Tally`: what became of the requests of a simulation, in bounded memory.

Mean and quantiles of a long stream of numbers in bounded memory. Exact up to 16,384 numbers;
beyond, a histogram with bins 1 % wide, whose quantiles are within 0.5 % of a number of the stream.
Zero has a bin of its own; below 1 ns is the same bin as 1 ns.
"""

import math
from collections import Counter
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from types import MappingProxyType

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
    """Collects latencies block by block, and counts who met the SLO, or that of its priority."""

    def __init__(self, slo: Slo, slos: Mapping[int, Slo] = MappingProxyType({})) -> None:
        self.slo, self._slos = slo, slos
        self.num_arrived = self.num_rejected = self.num_finished = self.num_good = 0
        self.num_late = 0  # as soon as they finish; the others are counted block by block
        self.input_tokens = self.output_tokens = 0
        self.end_s = 0.0
        self._sketches = tuple(QuantileSketch() for _ in range(5))
        self._tickets: list[Ticket] = []  # of requests that are done, and when
        self._ends: list[float] = []
        self._has_slo = bool(slo.targets or slos)
        self._classes: dict[int, tuple[QuantileSketch, ...]] = {}
        self._done, self._good, self._rejected = Counter[int](), Counter[int](), Counter[int]()

    def finish(self, ticket: Ticket, end_s: float) -> None:
        """A request has all its tokens."""
        self._tickets.append(ticket)
        self._ends.append(end_s)
        if self._has_slo:
            arrival = ticket.arrival
            slo = self._slos.get(arrival.priority, self.slo)
            tpot_s = (end_s - ticket.first_s) / max(arrival.output_tokens - 1, 1)
            if ticket.first_s - arrival.time_s > slo.ttft_s or tpot_s > slo.tpot_s:
                self.num_late += 1
        if len(self._ends) == _BLOCK:
            self._flush()

    def reject(self, ticket: Ticket) -> None:
        """A request finds no place."""
        self.num_rejected += 1
        self._rejected[ticket.arrival.priority] += 1

    def _flush(self) -> None:
        if not self._ends:
            return
        arrivals = [ticket.arrival for ticket in self._tickets]
        arrived = np.array([arrival.time_s for arrival in arrivals])
        first = np.array([ticket.first_s for ticket in self._tickets])
        end = np.array(self._ends)
        gaps = np.array([arrival.output_tokens for arrival in arrivals]) - 1
        turns = np.array([a.turn if a.session >= 0 else 0 for a in arrivals])
        priorities = [arrival.priority for arrival in arrivals]
        ttft, tpot = first - arrived, (end - first) / np.maximum(gaps, 1)
        by_turn = ttft[turns == 1], ttft[turns > 1]
        taken = ttft, tpot[gaps > 0], end - arrived, *by_turn
        seen, kinds = list(self._done), set(priorities)
        has_classes = len(kinds.union(seen)) > 1
        if has_classes and len(seen) == 1 and not self._classes:  # all so far were of one
            self._classes[seen[0]] = deepcopy(self._sketches[:3])
        for sketch, values in zip(self._sketches, taken, strict=True):
            sketch.add(values)
        for one in kinds:
            own, slo = np.array(priorities) == one, self._slos.get(one, self.slo)
            good = (ttft <= slo.ttft_s) & (tpot <= slo.tpot_s)
            self.num_good += int(good[own].sum())
            self._done[one] += int(own.sum())
            self._good[one] += int(good[own].sum())
            if has_classes:
                sketches = self._classes.setdefault(one, tuple(QuantileSketch() for _ in range(3)))
                parts = ttft[own], tpot[own & (gaps > 0)], (end - arrived)[own]
                for sketch, values in zip(sketches, parts, strict=True):
                    sketch.add(values)
        self.num_finished += gaps.size
        self.output_tokens += int(gaps.sum()) + gaps.size
        self.end_s = max(self.end_s, float(end.max()))
        self.input_tokens += sum(arrival.input_tokens for arrival in arrivals)
        self._tickets.clear()
        self._ends.clear()

    def latencies(self) -> Latencies:
        self._flush()
        return Latencies(*(sketch.summary() for sketch in self._sketches))

    def by_priority(self) -> tuple[PriorityClass, ...]:
        """Class by class, the first to go first; none where all requests are of one."""
        self._flush()
        found = sorted(self._done | self._rejected)
        return tuple(self._class(one) for one in found if len(found) > 1)

    def _class(self, one: int) -> PriorityClass:
        of_one = self._sketches[:3] if self._done[one] else _NO_SKETCHES  # others were rejected
        ttft, tpot, e2e = (s.summary() for s in self._classes.get(one, of_one))
        counts = self._done[one], self._rejected[one], self._good[one]
        return PriorityClass(one, *counts, ttft, tpot, e2e)

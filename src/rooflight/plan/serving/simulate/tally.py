"""`Tally`: what became of the requests of a simulation, in bounded memory."""

import math
from dataclasses import dataclass

import numpy as np

from rooflight.plan.serving.simulate.quantiles import Quantiles, QuantileSketch
from rooflight.plan.serving.simulate.replica import Ticket
from rooflight.units import format_seconds

_BLOCK = 1 << 13


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


class Tally:
    """Collects latencies block by block, and counts who met the SLO."""

    def __init__(self, slo: Slo) -> None:
        self.slo = slo
        self.num_arrived = self.num_rejected = self.num_finished = self.num_good = 0
        self.input_tokens = self.output_tokens = 0
        self.end_s = 0.0
        self._sketches = (QuantileSketch(), QuantileSketch(), QuantileSketch())
        self._times: tuple[list[float], list[float], list[float]] = ([], [], [])
        self._gaps: list[int] = []

    def finish(self, ticket: Ticket, end_s: float) -> None:
        """A request has all its tokens."""
        arrival = ticket.arrival
        arrivals, firsts, ends = self._times
        arrivals.append(arrival.time_s)
        firsts.append(ticket.first_s)
        ends.append(end_s)
        self._gaps.append(arrival.output_tokens - 1)
        self.input_tokens += arrival.input_tokens
        if len(ends) == _BLOCK:
            self._flush()

    def _flush(self) -> None:
        arrived, first, end = (np.array(times) for times in self._times)
        gaps = np.array(self._gaps)
        if not gaps.size:
            return
        ttft, tpot = first - arrived, (end - first) / np.maximum(gaps, 1)
        for sketch, values in zip(
            self._sketches, (ttft, tpot[gaps > 0], end - arrived), strict=True
        ):
            sketch.add(values)
        self.num_good += int(((ttft <= self.slo.ttft_s) & (tpot <= self.slo.tpot_s)).sum())
        self.num_finished += gaps.size
        self.output_tokens += int(gaps.sum()) + gaps.size
        self.end_s = max(self.end_s, float(end.max()))
        for values in (*self._times, self._gaps):
            values.clear()

    def latencies(self) -> Latencies:
        self._flush()
        return Latencies(*(sketch.summary() for sketch in self._sketches))

"""What became of the requests: latencies, goodput under an SLO, errors, lag.

Every time counts from the moment a request was due, not from when it was sent: a generator that
falls behind cannot hide a slow server (coordinated omission). How late it was is told as well.

    TTFT = first token - due    E2E = last token - due    ITL = gap between two streamed chunks
    TPOT = (last token - first token) / (tokens - 1), of requests with two tokens or more
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from rooflight.measure.load.machine import HIGH
from rooflight.plan.serving.simulate.arrivals import Arrival
from rooflight.plan.serving.simulate.tally import Quantiles, QuantileSketch, Slo

LONGEST_WORDS = 200  # that are kept of what a server says

_BLOCK = 1 << 12


@dataclass(slots=True)
class Reply:
    """What came of a request so far."""

    first_s: float = 0.0
    last_s: float = 0.0
    finish_s: float = 0.0  # when it was told why the text ends
    chunks: int = 0
    gaps: list[float] = field(default_factory=list[float])  # between chunks: ITL
    input_tokens: int = 0  # as the server counts; 0 if it does not say
    output_tokens: int = 0
    is_done: bool = False
    error: str = ""  # its kind, such as `connect` or `http 429`
    words: str = ""  # and what was said of it

    def chunk(self, now: float) -> None:
        """One more piece of output has come."""
        if self.chunks:
            self.gaps.append(now - self.last_s)
        else:
            self.first_s = now
        self.chunks, self.last_s = self.chunks + 1, now

    def fail(self, error: str, words: object) -> None:
        self.error, self.words = error, str(words)[:LONGEST_WORDS]


@dataclass(frozen=True, slots=True)
class Measured:
    """Latencies are of requests that finished; seconds count from when the first was due."""

    num_requests: int  # offered, sent or not
    num_sent: int
    num_finished: int
    num_good: int  # finished within the SLO
    num_short: int  # finished with fewer tokens than asked
    duration_s: float
    input_tokens: int  # of finished requests, as the server counts, else as asked
    output_tokens: int
    ttft: Quantiles | None
    tpot: Quantiles | None
    itl: Quantiles | None
    e2e: Quantiles | None
    lag: Quantiles | None  # sent - due, of all that were sent
    errors: dict[str, int]  # by kind
    said: dict[str, str]  # of each kind, what the first one said
    other_load: float | None  # share of this machine's cores, where it can be told

    @property
    def good_share(self) -> float:
        """Of all requests that were offered: those that failed or were not sent are not good."""
        return self.num_good / self.num_requests

    @property
    def goodput(self) -> float:
        """Good requests per second."""
        return self.num_good / self.duration_s if self.duration_s else 0.0

    @property
    def faults(self) -> list[str]:
        """What makes the measurement less than what was asked."""
        lines = [
            f"error: {count:,} x {kind}, such as: {' '.join(self.said[kind].split())}"
            for kind, count in self.errors.items()
        ]
        if self.num_short:
            lines.append(f"{self.num_short:,} answers have fewer tokens than asked")
        if (self.other_load or 0.0) > HIGH:
            lines.append(f"other load had {self.other_load:.0%} of the cores: measure again")
        return lines


class LoadTally:
    """Collects answers in bounded memory."""

    def __init__(self, slo: Slo) -> None:
        self._slo = slo
        self._times = {name: _BlockSketch() for name in ("ttft", "tpot", "itl", "e2e", "lag")}
        self._errors: Counter[str] = Counter()
        self._said: dict[str, str] = {}
        self.num_sent = self.num_finished = self._num_good = self._num_short = 0
        self._input_tokens = self._output_tokens = 0
        self._end_s = 0.0

    def sent(self, lag_s: float) -> None:
        """A request goes out, so long after it was due."""
        self.num_sent += 1
        self._times["lag"].add(lag_s)

    def ended(self, answer: Reply, *, due_s: float, begin_s: float, asked: Arrival) -> None:
        """A request has its last token, or an error; `begin_s` is when the run began."""
        if answer.error:
            self._errors[answer.error] += 1
            self._said.setdefault(answer.error, answer.words)
            return
        times, gaps = self._times, answer.output_tokens - 1
        ttft_s, tail_s = answer.first_s - due_s, answer.last_s - answer.first_s
        tpot_s = tail_s / gaps if gaps > 0 else 0.0
        times["ttft"].add(ttft_s)
        times["e2e"].add(answer.last_s - due_s)
        times["itl"].extend(answer.gaps)
        if gaps > 0:
            times["tpot"].add(tpot_s)
        self.num_finished += 1
        self._num_good += ttft_s <= self._slo.ttft_s and tpot_s <= self._slo.tpot_s
        self._num_short += answer.output_tokens < asked.output_tokens
        self._input_tokens += answer.input_tokens or asked.input_tokens
        self._output_tokens += answer.output_tokens
        self._end_s = max(self._end_s, answer.last_s - begin_s)

    def result(self, num_requests: int, other_load: float | None = None) -> Measured:
        """So many were offered; those not sent in time are an error too."""
        unsent = num_requests - self.num_sent
        return Measured(
            num_requests=num_requests,
            num_sent=self.num_sent,
            num_finished=self.num_finished,
            num_good=self._num_good,
            num_short=self._num_short,
            duration_s=self._end_s,
            input_tokens=self._input_tokens,
            output_tokens=self._output_tokens,
            **{name: times.summary() for name, times in self._times.items()},
            other_load=other_load,
            errors=dict(self._errors) | ({"not sent": unsent} if unsent else {}),
            said=self._said | ({"not sent": "the time limit came first"} if unsent else {}),
        )


class _BlockSketch:
    """A sketch that is fed a block at a time."""

    __slots__ = ("_block", "_sketch")

    def __init__(self) -> None:
        self._sketch = QuantileSketch()
        self._block: list[float] = []

    def add(self, seconds: float) -> None:
        self.extend((seconds,))

    def extend(self, seconds: Sequence[float]) -> None:
        self._block.extend(seconds)
        if len(self._block) >= _BLOCK:
            self._flush()

    def _flush(self) -> None:
        self._sketch.add(np.array(self._block))
        self._block.clear()

    def summary(self) -> Quantiles | None:
        self._flush()
        return self._sketch.summary()

"""`Replica`: one scheduler under a virtual clock, run lazily up to the time of its next event."""

import math
from collections.abc import Callable, Sequence

from rooflight.batching.request import Admission, Key, Limits, Request
from rooflight.batching.scheduler import Scheduler
from rooflight.errors import UsageError
from rooflight.plan.serving.simulate.arrivals import Arrival
from rooflight.plan.serving.simulate.clock import StepClock
from rooflight.plan.serving.simulate.reuse import ReuseLog

_SEGMENT_BLOCKS = 1 << 20  # blocks one segment can have: room between the keys of two


class Ticket:
    """A request under way, when its first token came, and how late its tokens leave steps."""

    __slots__ = ("arrival", "first_s", "id", "late_s")

    def __init__(self, id: int, arrival: Arrival) -> None:
        self.id = id
        self.arrival = arrival
        self.first_s = math.nan
        self.late_s = 0.0


Sink = Callable[[Ticket, float], None]  # a request is done, at a time


class Replica:
    """A server: `now` is the end of its last step, at which the next may begin."""

    __slots__ = (
        "_clock",
        "_restored",
        "_sink",
        "_steady_until_s",
        "_tickets",
        "busy_s",
        "decode_steps",
        "now",
        "reuse",
        "row_steps",
        "scheduler",
        "steps",
    )

    def __init__(self, limits: Limits, clock: StepClock, sink: Sink) -> None:
        self.scheduler = Scheduler(limits)
        self.now = 0.0
        self.busy_s = 0.0
        self.steps = 0
        self.decode_steps = 0  # in which any row decodes
        self.row_steps = 0  # summed over steps, the rows that decode in each
        self.reuse: ReuseLog | None = None  # of those that ask for a hit-rate curve
        self._restored = 0  # blocks that came back from host memory
        self._steady_until_s = 0.0  # before, nobody comes or goes of itself
        self._clock = clock
        self._sink = sink
        self._tickets: dict[int, Ticket] = {}

    def warm(self, arrival: Arrival) -> None:
        """The shared beginning of such a prompt is cached, as after hours of service."""
        self.scheduler.room.remember(segment_keys(arrival, self.scheduler.limits.block_tokens))

    @property
    def load(self) -> int:
        """Requests; one that waits counts twice, as for a router that keeps prefixes."""
        return self.scheduler.num_requests + self.scheduler.num_waiting

    def add(self, ticket: Ticket, *, output_tokens: int) -> Admission:
        """A prompt comes; it is seen at the end of the step under way."""
        self._steady_until_s = 0.0
        request = self._request(ticket, output_tokens)
        admission = self.scheduler.add(request)
        if admission is Admission.ADMITTED:
            self._tickets[ticket.id] = ticket
            if self.reuse is not None:
                self.reuse.add(request.keys, request.prompt_tokens)
        return admission

    def insert(self, ticket: Ticket) -> Admission:
        """A prompt comes with its KV cache and first token."""
        self._steady_until_s = 0.0
        ticket.late_s = 0.0
        admission = self.scheduler.insert(self._request(ticket, ticket.arrival.output_tokens))
        if admission is Admission.ADMITTED:
            self._tickets[ticket.id] = ticket
        return admission

    def _request(self, ticket: Ticket, output_tokens: int) -> Request:
        arrival = ticket.arrival
        is_shared = arrival.segments or arrival.session >= 0
        keys = block_keys(arrival, self.scheduler.limits.block_tokens) if is_shared else ()
        return Request(ticket.id, arrival.input_tokens, output_tokens, keys, arrival.priority)

    def next_s(self) -> float:
        """When somebody next ends, or a step with a prompt begins; inf where all is done."""
        scheduler = self.scheduler
        if not scheduler.num_requests:
            return math.inf
        if self._steady_until_s <= self.now:
            horizon = scheduler.horizon()
            self._steady_until_s = self.now
            if horizon:
                self._steady_until_s += self._decode(horizon, math.inf)[1]
        return self._steady_until_s

    def run_next(self) -> None:
        """Goes there; what begins then is done."""
        horizon = self.scheduler.horizon()
        if horizon:
            self._advance(*self._decode(horizon, math.inf))
        else:
            self._step()

    def run_until(self, time_s: float) -> None:
        """Makes every step that begins before `time_s`."""
        self.run_events(time_s)
        self.catch_up(time_s)

    def catch_up(self, time_s: float) -> None:
        """The rest after `run_events`: steps in which rows only decode."""
        if self.now < time_s and self.scheduler.num_requests:
            steps, seconds = self._decode(self.scheduler.horizon(), time_s)
            self._advance(steps, seconds)
        elif self.now < time_s < math.inf:
            self.now = time_s

    def run_events(self, time_s: float) -> None:
        """The same, but stops where nobody comes or goes before `time_s`: often no work at all."""
        if time_s < self._steady_until_s:
            return
        scheduler = self.scheduler
        while self.now < time_s and scheduler.num_requests:
            horizon = scheduler.horizon()
            if not horizon:
                self._step()
                continue
            steps, seconds = self._decode(horizon, math.inf)
            self._steady_until_s = self.now + seconds
            if self._steady_until_s > time_s:
                return
            self._advance(steps, seconds)

    def _decode(self, steps: int, time_s: float) -> tuple[int, float]:
        """Of so many steps without an event those that begin before `time_s`, and their seconds."""
        scheduler = self.scheduler
        rows = scheduler.num_decoding
        kv = scheduler.kv_tokens + rows
        return self._clock.decode(rows=rows, kv=kv, steps=steps, until_s=time_s - self.now)

    def _advance(self, steps: int, seconds: float) -> None:
        self._passed(steps, self.scheduler.num_decoding, seconds)
        outcome = self.scheduler.advance(steps)
        self._finish(outcome.finished)

    def _step(self) -> None:
        batch = self.scheduler.schedule()
        chunk_tokens = attended = 0
        for _, _, start, tokens, _ in batch.chunks:
            chunk_tokens += tokens
            attended += tokens * start + tokens * (tokens + 1) // 2
        rows = len(batch.decode_rows)
        seconds = self._clock.step(
            rows=rows, kv=batch.kv_tokens, chunk_tokens=chunk_tokens, attended=attended
        )
        tier = self.scheduler.room.tier
        if tier is not None and tier.num_restored > self._restored:  # before anything reads them
            seconds += (tier.num_restored - self._restored) * self._clock.restore_s
            self._restored = tier.num_restored
        self._passed(1, rows, seconds)
        outcome = self.scheduler.commit()
        if outcome.prefilled:
            late_s = self._clock.late(chunk_tokens=chunk_tokens, attended=attended)
            self._first(outcome.prefilled, late_s)
        self._finish(outcome.finished)

    def _passed(self, steps: int, rows: int, seconds: float) -> None:
        self.now += seconds
        self.busy_s += seconds
        self.steps += steps
        if rows:
            self.decode_steps += steps
            self.row_steps += steps * rows

    def _first(self, prefilled: Sequence[int], late_s: float) -> None:
        for id in prefilled:
            ticket = self._tickets[id]
            if math.isnan(ticket.first_s):  # a preempted request had its first token before
                ticket.late_s = late_s
                ticket.first_s = self.now + late_s

    def _finish(self, finished: Sequence[int]) -> None:
        for id in finished:
            ticket = self._tickets.pop(id)
            self._sink(ticket, self.now + ticket.late_s)


def block_keys(arrival: Arrival, block_tokens: int) -> list[Key]:
    """Those of its segments, then those of its session, to the end of its answer."""
    keys: list[Key] = [*segment_keys(arrival, block_tokens)]
    if arrival.session >= 0:  # the last token of an answer is never computed
        full = (arrival.input_tokens + arrival.output_tokens - 1) // block_tokens
        keys += [(arrival.session, at) for at in range(len(keys), full)]
    return keys


def segment_keys(arrival: Arrival, block_tokens: int) -> list[int]:
    """Keys of the blocks that lie whole within the shared segments of a prompt."""
    size, segments = arrival.segment_tokens, arrival.segments
    if len(segments) > 1 and size < block_tokens and block_tokens % size == 0:
        each = block_tokens // size  # a block has the key of its last segment
        return [*segments[each - 1 :: each]]
    if len(segments) > 1 and size % block_tokens:
        raise UsageError(
            f"segments of {size} tokens do not split into blocks of {block_tokens}",
            hint="take blocks of 16, 32, 64 or 128 tokens",
        )
    blocks = size // block_tokens
    return [segment * _SEGMENT_BLOCKS + at for segment in segments for at in range(blocks)]

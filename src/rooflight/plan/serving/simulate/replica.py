"""`Replica`: one scheduler under a virtual clock, run lazily up to the time of its next event.

While everybody fits, `Ample` stands in for the scheduler: equal, and several times as fast.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence

from rooflight.batching.ample import Ample
from rooflight.batching.request import Admission, Key, Limits, Request
from rooflight.batching.scheduler import Scheduler
from rooflight.errors import UsageError
from rooflight.plan.serving.simulate.arrivals import Arrival
from rooflight.plan.serving.simulate.clock import StepClock
from rooflight.plan.serving.simulate.reuse import ReuseLog

_ADMITTED = Admission.ADMITTED  # looking up a member costs as much as a call
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
        *("_ample", "_clock", "_drive_s", "_reading", "_restored", "_sink", "_tickets", "_tier"),
        *("_written", "batch", "busy_s", "decode_steps", "now", "reuse", "row_steps"),
        *("scheduler", "steady_until_s", "steps"),
    )

    def __init__(self, limits: Limits, clock: StepClock, sink: Sink) -> None:
        self.scheduler = Scheduler(limits)
        self._tier = self.scheduler.room.tier
        self._ample = Ample[Ticket](limits)
        self.batch: Ample[Ticket] | Scheduler = self._ample  # which of them has the requests
        self.now = 0.0
        self.busy_s = 0.0
        self.steps = 0
        self.decode_steps = 0  # in which any row decodes
        self.row_steps = 0  # summed over steps, the rows that decode in each
        self.reuse: ReuseLog | None = None  # of those that ask for a hit-rate curve
        self._restored = 0  # blocks that came back from host memory
        self._written = 0  # blocks that left it for the SSD
        self._drive_s = 0.0  # when the SSD has done all that it was asked for, one by one
        self._reading = deque[tuple[float, Request]]()  # that wait for it, and until when
        self.steady_until_s = 0.0  # before, nobody comes or goes of itself
        self._clock = clock
        self._sink = sink
        self._tickets: dict[int, Ticket] = {}

    def warm(self, arrival: Arrival) -> None:
        """The shared beginning of such a prompt is cached, as after hours of service."""
        self.batch = self.scheduler
        self.scheduler.room.remember(segment_keys(arrival, self.scheduler.limits.block_tokens))

    @property
    def load(self) -> int:
        """Requests; one that waits counts twice, as for a router that keeps prefixes."""
        return self.batch.num_requests + self.batch.num_waiting + 2 * len(self._reading)

    def add(self, ticket: Ticket, output_tokens: int, has_kv: bool = False) -> Admission:
        """A prompt comes, to make so many tokens; it is seen at the end of the step under way."""
        self.steady_until_s = 0.0
        arrival = ticket.arrival
        if self.batch is self._ample:
            is_alone = not arrival.segments and arrival.session < 0 and self.reuse is None
            if is_alone and self._ample.add(
                ticket, arrival.input_tokens, output_tokens, arrival.priority, has_kv
            ):
                return _ADMITTED
            self._contend()
        request = self._request(ticket, output_tokens)
        can_read = self.scheduler.limits.ssd_blocks and not has_kv
        if can_read and self._read(request, arrival.time_s):
            admission = _ADMITTED
        else:
            admission = (self.scheduler.insert if has_kv else self.scheduler.add)(request)
        if admission is _ADMITTED:
            self._tickets[ticket.id] = ticket
            if self.reuse is not None:
                self.reuse.add(request.keys, request.prompt_tokens)
        return admission

    def insert(self, ticket: Ticket) -> Admission:
        """A prompt comes with its KV cache and first token."""
        ticket.late_s = 0.0
        return self.add(ticket, ticket.arrival.output_tokens, has_kv=True)

    def _read(self, request: Request, now_s: float) -> bool:
        """True if it has to wait until the SSD has brought what it has of the prompt."""
        if self.scheduler.check(request) is not _ADMITTED:
            return False
        blocks, times = self.scheduler.room.prefetch(request), self._clock.offload
        if blocks:
            self._drive_s = max(self._drive_s, now_s) + times.latency_s + blocks * times.read_s
            self._reading.append((self._drive_s, request))
        return blocks > 0

    def _contend(self) -> None:
        """From now on the scheduler has to decide who waits."""
        self.batch = self.scheduler
        for ticket, new, has_kv, cached in self._ample.hand_over():
            self._tickets[ticket.id] = ticket
            self.scheduler.resume(self._request(ticket, new), has_kv=has_kv, cached=cached)

    def _request(self, ticket: Ticket, output_tokens: int) -> Request:
        arrival = ticket.arrival
        keys: Sequence[Key] = ()
        if arrival.segments or arrival.session >= 0:
            keys = block_keys(arrival, self.scheduler.limits.block_tokens)
        return Request(ticket.id, arrival.input_tokens, output_tokens, keys, arrival.priority)

    def next_s(self) -> float:
        """When somebody next ends, or a step with a prompt begins; inf where all is done."""
        ready_s = self._reading[0][0] if self._reading else math.inf
        if not self.batch.num_requests:
            return ready_s
        if self.steady_until_s <= self.now:
            horizon = self.batch.horizon()
            self.steady_until_s = self.now
            if horizon:
                self.steady_until_s += self._decode(horizon, math.inf)[1]
        self.steady_until_s = min(self.steady_until_s, ready_s)
        return self.steady_until_s

    def run_next(self) -> None:
        """Goes there; what begins then is done."""
        if self._reading and self._reading[0][0] <= self.next_s():
            self.run_events(self._reading[0][0])
            return
        horizon = self.batch.horizon()
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
        if self.now < time_s:
            if self.batch.num_requests:
                steps, seconds = self._decode(self.batch.horizon(), time_s)
                self._advance(steps, seconds)
            elif time_s < math.inf:
                self.now = time_s

    def run_events(self, time_s: float) -> None:
        """The same, but stops where nobody comes or goes before `time_s`: often no work at all."""
        while self._reading and self._reading[0][0] <= time_s:
            ready_s, request = self._reading.popleft()
            self._run_events(ready_s)
            self.catch_up(ready_s)
            self.scheduler.resume(request, has_kv=False, cached=0)
            self.steady_until_s = 0.0
        self._run_events(time_s)
        if self._reading:
            self.steady_until_s = min(self.steady_until_s, self._reading[0][0])

    def _run_events(self, time_s: float) -> None:
        if time_s < self.steady_until_s:
            return
        if (batch := self.batch) is self._ample:
            self._ample_events(time_s)
            return
        while self.now < time_s and batch.num_requests:
            horizon = batch.horizon()
            if not horizon:
                self._scheduled_step()
                continue
            steps, seconds = self._decode(horizon, math.inf)
            self.steady_until_s = self.now + seconds
            if self.steady_until_s > time_s:
                return
            self._advance(steps, seconds)

    def _ample_events(self, time_s: float) -> None:
        """The same without a call for each part: a fleet spends most of its time here."""
        ample, decode = self._ample, self._clock.decode
        while self.now < time_s and ample.num_requests:
            horizon = ample.horizon()
            if not horizon:
                self._ample_step()
                continue
            rows = ample.num_decoding
            steps, seconds = decode(rows, ample.kv_tokens + rows, horizon, math.inf)
            end_s = self.now + seconds
            if end_s > time_s:
                self.steady_until_s = end_s
                return
            self.now = end_s
            self.busy_s += seconds
            self.steps += steps
            self.decode_steps += steps
            self.row_steps += steps * rows
            for ticket in ample.advance(steps):
                self._sink(ticket, end_s + ticket.late_s)
        self.steady_until_s = self.now

    def _decode(self, steps: int, time_s: float) -> tuple[int, float]:
        """Of so many steps without an event those that begin before `time_s`, and their seconds."""
        batch = self.batch
        rows = batch.num_decoding
        return self._clock.decode(rows, batch.kv_tokens + rows, steps, time_s - self.now)

    def _advance(self, steps: int, seconds: float) -> None:
        self._passed(steps, self.batch.num_decoding, seconds)
        if self.batch is self._ample:
            self._finish(self._ample.advance(steps))
        else:
            outcome = self.scheduler.advance(steps)
            self._write()
            self._dropped(outcome.finished)

    def _step(self) -> None:
        if self.batch is self._ample:
            self._ample_step()
        else:
            self._scheduled_step()

    def _ample_step(self) -> None:
        rows, kv, chunk_tokens, attended, prefilled, finished = self._ample.step()
        self._passed(1, rows, self._clock.step(rows, kv, chunk_tokens, attended))
        if prefilled:
            self._first(prefilled, self._clock.late(chunk_tokens, attended))
        if finished:
            self._finish(finished)

    def _scheduled_step(self) -> None:
        batch = self.scheduler.schedule()
        chunk_tokens = attended = 0
        for _, _, start, tokens, _ in batch.chunks:
            chunk_tokens += tokens
            attended += tokens * start + tokens * (tokens + 1) // 2
        rows = len(batch.decode_rows)
        seconds = self._clock.step(rows, batch.kv_tokens, chunk_tokens, attended)
        tier = self._tier
        if tier is not None and tier.num_restored > self._restored:  # before anything reads them
            seconds += (tier.num_restored - self._restored) * self._clock.offload.restore_s
            self._restored = tier.num_restored
        self._passed(1, rows, seconds)
        self._write()
        outcome = self.scheduler.commit()
        if outcome.prefilled:
            late_s = self._clock.late(chunk_tokens, attended)
            self._first([self._tickets[id] for id in outcome.prefilled], late_s)
        self._dropped(outcome.finished)

    def _write(self) -> None:
        """What left host memory goes to the SSD."""
        if self._tier is not None and (count := self._tier.num_written - self._written):
            self._written += count
            self._drive_s = max(self._drive_s, self.now) + count * self._clock.offload.write_s

    def _passed(self, steps: int, rows: int, seconds: float) -> None:
        self.now += seconds
        self.busy_s += seconds
        self.steps += steps
        if rows:
            self.decode_steps += steps
            self.row_steps += steps * rows

    def _first(self, prefilled: Sequence[Ticket], late_s: float) -> None:
        first_s = self.now + late_s
        for ticket in prefilled:
            if ticket.first_s != ticket.first_s:  # a preempted request had its first token before
                ticket.late_s = late_s
                ticket.first_s = first_s

    def _finish(self, finished: Sequence[Ticket]) -> None:
        for ticket in finished:
            self._sink(ticket, self.now + ticket.late_s)

    def _dropped(self, finished: Sequence[int]) -> None:
        """The scheduler has done with them."""
        self._finish([self._tickets.pop(id) for id in finished])
        rest = self.scheduler.num_requests or self._reading
        if not (rest or self.scheduler.room.pool.num_cached):
            self.batch = self._ample


def block_keys(arrival: Arrival, block_tokens: int) -> Sequence[Key]:
    """Those of its segments, then those of its session, to the end of its answer."""
    keys = segment_keys(arrival, block_tokens)
    if arrival.session < 0:
        return keys
    # the last token of an answer is never computed
    full = (arrival.input_tokens + arrival.output_tokens - 1) // block_tokens
    return [*keys, *((arrival.session, at) for at in range(len(keys), full))]


def segment_keys(arrival: Arrival, block_tokens: int) -> Sequence[int]:
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
    runs = [range(s * _SEGMENT_BLOCKS, s * _SEGMENT_BLOCKS + blocks) for s in segments]
    return runs[0] if len(runs) == 1 else [key for run in runs for key in run]

"""`DisaggregatedEngine`: an engine that prefills for others, or generates what others prefilled.

    prefill(job) -> Delta of its one token, a lease -> read(lease, group)... -> free(lease)
    expect(job) -> offer(first token) -> a row -> insert(group)... -> generate, or lose at any time

It has no thread and no clock, as an `Engine`; who calls it decides what is late. Whatever is lost
is computed here. A `read` or an `insert` that comes too late, when the blocks are somebody else's,
does nothing and says so.
"""

from collections.abc import Callable

from rooflight.batching.disaggregated import DisaggregatedScheduler, Hold
from rooflight.batching.request import Admission, Request
from rooflight.program.decode.pages import Values
from rooflight.program.model.forward import Program
from rooflight.program.model.params import Tree
from rooflight.serve.engine.config import EngineConfig
from rooflight.serve.engine.pages import Like
from rooflight.serve.engine.request import Delta, EngineRequest, Finish, TokenLogprobs
from rooflight.serve.engine.run import Engine
from rooflight.serve.engine.running import RunningRequest


class DisaggregatedEngine(Engine):
    """The verbs of both sides; `generate` is what `step` does with the rows that decode."""

    scheduler: DisaggregatedScheduler

    def __init__(self, program: Program, params: Tree, config: EngineConfig) -> None:
        super().__init__(program, params, config)
        self.scheduler = DisaggregatedScheduler(config.limits)
        self.num_lost = 0  # prompts that were computed here after all
        self.num_inserted = 0
        self._begin: dict[int, Callable[[], None]] = {}
        self._left: dict[int, set[int]] = {}  # groups that a landing still waits for

    @property
    def has_work(self) -> bool:
        return bool(self._pending) or not self.scheduler.is_idle

    @property
    def num_groups(self) -> int:
        """Parts that the KV of a prompt is read and inserted in."""
        return len(self.device.pages.groups)

    @property
    def most_bytes(self) -> int:
        """Of one array of one of these parts."""
        pages, most = self.device.pages, self.config.max_blocks
        likes = [pages.like(most, group) for group in pages.groups]
        return max(x.size * x.dtype.itemsize for like in likes for x in like.values())

    # The side that prefills

    def prefill(self, job: EngineRequest) -> Admission:
        """Queues a job of one token; with that, its blocks are leased under its id."""
        return self._admit(job, self.scheduler.prefill)

    def read(self, lease: int, group: int) -> Values | None:
        """The KV of a group of layers, on its way; None if the lease has ended."""
        hold = self.scheduler.leases.get(lease)
        if hold is None or not self.scheduler.is_current(hold):
            return None
        return self.device.read(hold.blocks, self.device.pages.groups[group])

    def free(self, lease: int) -> None:
        """Ends a lease, and the job if it is still here."""
        self.cancel(lease)
        self.scheduler.free(lease)

    # The side that generates

    def expect(self, job: EngineRequest) -> Admission:
        """Takes a job whose prompt is computed elsewhere, unless most of it is cached here."""

        def enqueue(request: Request) -> Admission:
            cached = self.scheduler.room.num_cached(request.keys)
            is_new = request.prompt_tokens - cached > max(self.config.tile_tokens, cached)
            return (self.scheduler.expect if is_new else self.scheduler.add)(request)

        return self._admit(job, enqueue)

    def is_away(self, id: int) -> bool:
        """Whether a job still waits for its prompt to be computed elsewhere."""
        return self.scheduler.is_away(id)

    def offer(
        self, id: int, token: int, logprobs: TokenLogprobs | None, begin: Callable[[], None]
    ) -> list[Delta]:
        """Its first token; `begin` is called when there is a row to insert its KV into."""
        text = self._sequences.get(id)
        if text is None or not self.scheduler.offer(id):
            return []
        text.length += 1
        self._count_prompt(text, 0)
        delta = self._gain(text, [token], () if logprobs is None else (logprobs,))
        if delta.finish is None:
            self._begin[id] = begin
        return [delta]

    def like(self, id: int, group: int) -> Like | None:
        """What `insert` takes for a job that has a row; None if it has none, or not any more."""
        hold = self._landing(id)
        if hold is None:
            return None
        return self.device.pages.like(len(hold.blocks), self.device.pages.groups[group])

    def insert(self, id: int, group: int, values: Values) -> bool:
        """The KV of a group of layers; with the last one the job generates. False if too late."""
        hold = self._landing(id)
        if hold is None:
            return False
        self.device.insert(hold.blocks, self.device.pages.groups[group], values)
        left = self._left[id]
        left.discard(group)
        if not left:
            self._land(id, hold.row)
        return True

    def lose(self, id: int) -> None:
        """What was computed elsewhere will not come: it is computed here."""
        self._forget(id)
        self.num_lost += self.scheduler.lose(id)

    # Inside

    def step(self) -> list[Delta]:
        deltas = super().step()
        for id in [id for id in self._begin if id in self.scheduler.landing]:
            self._left[id] = set(range(self.num_groups))
            self._begin.pop(id)()
        return deltas

    def _landing(self, id: int) -> Hold | None:
        hold = self.scheduler.landing.get(id) if id in self._left else None
        return hold if hold is not None and self.scheduler.is_current(hold) else None

    def _land(self, id: int, row: int) -> None:
        text = self._sequences[id]
        self._seat(row, text)
        self.device.start_row(row, text.tokens[-1])
        self._forget(id)
        self.scheduler.land(id)
        self.num_inserted += 1

    def _forget(self, id: int) -> None:
        self._begin.pop(id, None)
        self._left.pop(id, None)

    def _end(self, text: RunningRequest, finish: Finish, error: str = "") -> Delta:
        self._forget(text.job.id)
        return super()._end(text, finish, error)

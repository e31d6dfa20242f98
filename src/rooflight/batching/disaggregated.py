"""`DisaggregatedScheduler`: prompts may be prefilled on one replica and decoded on another.

On the replica that prefills, the blocks of a finished prompt stay on a lease until the other has
read them or the lease is ended:

    prefill -> its one token -> lease -> free

On the replica that generates, a request is expected, then offered, then has a row into which its
KV is written, and decodes once all of it is there; it can be lost anywhere on the way, and is then
computed here as any other:

    expect -> (away) -> offer -> (in the queue) -> row and blocks, (landing) -> land -> (decodes)

Who writes or reads blocks for others names their generations: how often each was taken when the
lease or the landing began. A block that was taken again since is not mistaken for the old one.
"""

from collections.abc import Iterable
from typing import NamedTuple, cast

from rooflight.batching.kv_offload import CpuKvOffload
from rooflight.batching.pool import BlockPool
from rooflight.batching.request import Admission, Limits, Request
from rooflight.batching.room import Room
from rooflight.batching.scheduler import Scheduler
from rooflight.batching.sequence import Sequence


class Hold(NamedTuple):
    """Blocks that another replica reads or fills, as they were numbered when that began."""

    row: int  # -1 for a lease
    blocks: tuple[int, ...]
    generations: tuple[int, ...]


class NumberedPool(BlockPool):
    """Counts how often each block was taken."""

    __slots__ = ("_generations",)

    def __init__(self, num_blocks: int, tier: CpuKvOffload | None = None) -> None:
        super().__init__(num_blocks, tier)
        self._generations = [0] * num_blocks

    def take(self, count: int) -> list[int]:
        taken = super().take(count)
        for block in taken:
            self._generations[block] += 1
        return taken

    def generations(self, blocks: Iterable[int]) -> tuple[int, ...]:
        return tuple(self._generations[block] for block in blocks)


class DisaggregatedScheduler(Scheduler):
    """Also knows leases, and requests whose KV is on its way."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self.room = Room(limits, NumberedPool)
        self.pool = cast(NumberedPool, self.room.pool)
        self.leases: dict[int, Hold] = {}
        self.landing: dict[int, Hold] = {}  # have a row and blocks, and wait for their KV
        self._keeps: set[int] = set()  # prompts whose blocks will be leased
        self._away: dict[int, Sequence] = {}  # nothing is known of them yet
        self._away_tokens = 0

    @property
    def num_waiting(self) -> int:
        return self._waiting.count + len(self._away)

    @property
    def waiting_tokens(self) -> int:
        return self._waiting.tokens + self._away_tokens

    @property
    def is_idle(self) -> bool:
        """Whether a step would be empty: all that is here waits for what is elsewhere."""
        is_waiting = self._waiting.count and not self._is_blocked
        return not (self._decoding.rows or self._partial or is_waiting)

    # The replica that prefills

    def prefill(self, request: Request) -> Admission:
        """Queues a prompt; when its token is made, its blocks are leased under its id."""
        found = self.add(request)
        if found is Admission.ADMITTED:
            self._keeps.add(request.id)
        return found

    def free(self, id: int) -> None:
        """Ends a lease; one that is not there is no error."""
        lease = self.leases.pop(id, None)
        if lease is not None:
            self.pool.give(lease.blocks, named=len(lease.blocks))
            self._is_blocked = False

    # The replica that generates

    def expect(self, request: Request) -> Admission:
        """A request whose prompt is computed elsewhere; it waits until it is offered or lost."""
        found = self.check(request)
        if found is Admission.ADMITTED:
            self._away[request.id] = self._register(request, has_kv=False)
            self._away_tokens += request.prompt_tokens
        return found

    def is_away(self, id: int) -> bool:
        return id in self._away

    def offer(self, id: int) -> bool:
        """Its first token is made and its KV can be had: it waits for a row; false if it left."""
        sequence = self._away.pop(id, None)
        if sequence is None:
            return False
        self._away_tokens -= sequence.prompt
        sequence.has_kv = self._has_inserts = True
        self._queue(sequence)
        return True

    def land(self, id: int) -> None:
        """All of its KV is in its blocks: it decodes from the next step on."""
        del self.landing[id]
        super()._land(self._sequences[id])

    def lose(self, id: int) -> bool:
        """What was computed elsewhere will not come; false if it was not waited for."""
        sequence = self._sequences.get(id)
        if sequence is None or not (sequence.has_kv or id in self._away):
            return False
        if not sequence.has_kv:
            self._away_tokens -= self._away.pop(id).prompt
            self._queue(sequence)
            return True
        is_queued = sequence.row < 0
        if not is_queued:
            self._vacate(sequence)
        sequence.has_kv = self._is_blocked = False
        sequence.prompt += 1  # what it made is prompt now
        sequence.left -= 1
        if is_queued:
            self._waiting.tokens += 1
        else:
            self._waiting.push(sequence)
        return True

    def is_current(self, hold: Hold) -> bool:
        """Whether none of its blocks was taken since."""
        return self.pool.generations(hold.blocks) == hold.generations

    # What is done otherwise

    def cancel(self, id: int) -> bool:
        self._keeps.discard(id)
        return super().cancel(id)

    def abort(self) -> None:
        self._keeps.difference_update(id for id, s in self._sequences.items() if s.row >= 0)
        for id in list(self.leases):
            self.free(id)
        super().abort()

    def _land(self, sequence: Sequence) -> None:
        self.landing[sequence.id] = self._hold(sequence.row, sequence.blocks)

    def _hold(self, row: int, blocks: Iterable[int]) -> Hold:
        held = tuple(blocks)
        return Hold(row, held, self.pool.generations(held))

    def _vacate(self, sequence: Sequence) -> None:
        self.landing.pop(sequence.id, None)
        super()._vacate(sequence)

    def _drop(self, sequence: Sequence) -> None:
        blocks = tuple(sequence.blocks)
        super()._drop(sequence)
        if sequence.id in self._keeps:
            self._keeps.discard(sequence.id)
            self.pool.share(blocks)
            self.leases[sequence.id] = self._hold(-1, blocks)

    def _unqueue(self, sequence: Sequence) -> None:
        if self._away.pop(sequence.id, None) is None:
            super()._unqueue(sequence)
        else:
            self._away_tokens -= sequence.prompt

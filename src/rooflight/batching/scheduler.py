"""`Scheduler`: what runs next on one replica. No clock, no device, no tokens: it only counts.

Life of a request: `add` puts it in the queue; `schedule` gives it a row and blocks, whatever of its
prompt is cached already, and chunks of the rest; the `commit` of the last chunk makes its first
token; from then on it decodes a token each step, until it has all of them, is stopped or cancelled.

One budget of tokens per step: first a token for each row that decodes, then prompt chunks. A row
that needs a block when none is free sends the least important row back to the queue, where it
waits to be recomputed; nothing is admitted in such a step. `schedule` and `commit` alternate;
`horizon` says how many steps hold no event, and `advance` makes that many at once.
"""

from collections.abc import Collection, Iterable

from rooflight.batching.decoding import Decoding
from rooflight.batching.request import Admission, Key, Limits, Policy, Request
from rooflight.batching.room import Room
from rooflight.batching.sequence import Sequence, WaitingQueue
from rooflight.batching.step_batch import PrefillChunk, StepBatch, StepOutcome, TableWrite
from rooflight.errors import ModelError, UsageError

_NOTHING = StepOutcome((), ())
_ADMITTED = Admission.ADMITTED  # looking up a member costs as much as a call


class Scheduler:
    """The state of one replica: who waits, who prefills, who decodes, who holds which blocks."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.room = Room(limits)
        self.num_requests = 0  # waiting and running
        self.num_preemptions = 0
        self._is_chunked = limits.policy is Policy.CONTINUOUS
        self._is_static = limits.policy is Policy.STATIC
        self._is_open = True  # a static batch is being formed
        self._has_inserts = False  # any request ever came with its KV
        self._number = 0
        self._sequences: dict[int, Sequence] = {}
        self._waiting = WaitingQueue()
        self._decoding = Decoding(limits.block_tokens)
        self._partial: Sequence | None = None  # has a row and blocks, and prompt left to compute
        self._is_blocked = False  # the head of the queue has to wait until somebody leaves
        self._clear_steps = 0  # what `horizon` said, until anything changes
        self._in_flight: StepBatch | None = None
        self._doomed: list[Sequence] = []  # cancelled while in flight

    # What is here

    @property
    def num_waiting(self) -> int:
        return self._waiting.count

    @property
    def waiting_tokens(self) -> int:
        """Prompt tokens of those who wait."""
        return self._waiting.tokens

    @property
    def num_running(self) -> int:
        return self.room.num_rows

    @property
    def num_decoding(self) -> int:
        return len(self._decoding.rows)

    @property
    def kv_tokens(self) -> int:
        """Tokens in the cache of the rows that decode."""
        return self._decoding.kv_tokens

    def tables(self) -> dict[int, tuple[int, ...]]:
        """Row -> its blocks, for those that hold any."""
        held = (s for s in self._sequences.values() if s.row >= 0)
        return {s.row: tuple(s.blocks) for s in held}

    def __contains__(self, id: int) -> bool:
        return id in self._sequences

    # What goes in

    def add(self, request: Request) -> Admission:
        """Puts a request in the queue, or says why not."""
        return self._enqueue(request, has_kv=False)

    def insert(self, request: Request) -> Admission:
        """Queues a request whose prompt and first token were computed on another replica."""
        if request.max_new_tokens < 2:
            raise UsageError(f"request {request.id} has its only token", hint="nothing to insert")
        self._has_inserts = True
        return self._enqueue(request, has_kv=True)

    def resume(self, request: Request, *, has_kv: bool, cached: int) -> None:
        """Takes over a request that fits, with so many of its positions cached."""
        sequence = self._register(request, has_kv=has_kv and not cached)
        if not cached:
            self._queue(sequence)
        elif self.room.resume(sequence, cached):
            self._partial = sequence
        else:
            self._decoding.join(sequence)

    def _enqueue(self, request: Request, *, has_kv: bool) -> Admission:
        found = self.check(request)
        if found is _ADMITTED:
            self._queue(self._register(request, has_kv=has_kv))
        return found

    def check(self, request: Request) -> Admission:
        """Whether it would be taken now."""
        if request.id in self._sequences:
            raise UsageError(f"request {request.id} is already here", hint="give each its own id")
        if request.prompt_tokens + request.max_new_tokens - 1 > self.room.pool_tokens:
            return Admission.TOO_LONG
        return Admission.QUEUE_FULL if self._is_full(request) else _ADMITTED

    def _register(self, request: Request, *, has_kv: bool) -> Sequence:
        self._number += 1
        self._clear_steps = 0
        sequence = Sequence(request, self._number, has_kv=has_kv)
        self._sequences[request.id] = sequence
        self.num_requests += 1
        return sequence

    def _queue(self, sequence: Sequence) -> None:
        self._waiting.push(sequence)
        if self._is_blocked and self._waiting.head() is sequence:
            self._is_blocked = False

    def _is_full(self, request: Request) -> bool:
        limit = self.limits.max_waiting_tokens
        is_long = limit is not None and self.waiting_tokens + request.prompt_tokens > limit
        return is_long or self.num_waiting >= self.limits.max_waiting

    def cancel(self, id: int) -> bool:
        """Drops a request; while a step is in flight its blocks stay until the commit."""
        sequence = self._sequences.get(id)
        self._clear_steps = 0
        if sequence is None:
            return False
        if self._in_flight is not None and sequence.row >= 0:
            self._doomed.append(sequence)
        else:
            self._drop(sequence)
        return True

    def abort(self) -> None:
        """The device lost its cache: drops all that run, and forgets what was cached."""
        self._in_flight, self._doomed = None, []
        for sequence in [s for s in self._sequences.values() if s.row >= 0]:
            self._drop(sequence)
        self.room.forget()

    def extend_keys(self, id: int, keys: Iterable[Key]) -> None:
        """Keys of blocks that generated tokens have filled, in order."""
        sequence = self._sequences[id]
        sequence.keys = [*sequence.keys, *keys]
        if sequence.row in self._decoding.rows:
            self.room.name_blocks(sequence, sequence.origin + self._decoding.clock)

    # A step

    def schedule(self) -> StepBatch:
        """Decides the next step; `commit` must follow before anything else is scheduled."""
        if self._in_flight is not None:
            raise ModelError("two steps scheduled without a commit between them")
        writes: list[TableWrite] = []
        chunks: list[PrefillChunk] = []
        preempted: list[int] = []
        self._clear_steps = 0
        if self.room.tier is not None:
            self.room.tier.moves.clear()  # the host has taken them
        if self._has_inserts:
            self._insert_ready(writes)
        if self._is_chunked:
            preempted = self._grow(writes)
            if not preempted:
                self._chunk_prompts(chunks, writes)
        else:
            self._whole_prompts(chunks, writes)
            preempted = [] if chunks else self._grow(writes)
        decoding = self._decoding
        rows = tuple(decoding.rows) if self._is_chunked or not chunks else ()
        kv_tokens = decoding.kv_tokens + len(rows) if rows else 0
        self._in_flight = batch = StepBatch(rows, kv_tokens, chunks, writes, preempted)
        return batch

    def commit(self, *, stopped: Collection[int] = ()) -> StepOutcome:
        """The scheduled step was made; `stopped` are ids that end early, at an end-of-text."""
        batch = self._in_flight
        if batch is None:
            raise ModelError("a commit without a scheduled step")
        self._in_flight = None
        done = self._decoding.tick(1) if batch.decode_rows else []
        prefilled = [c.id for c in batch.chunks if c.is_last]
        for chunk in batch.chunks:
            done += self._commit_chunk(chunk)
        finished = [sequence.id for sequence in done]
        for id in stopped:
            if id not in finished:
                done.append(self._sequences[id])
                finished.append(id)
        for sequence in done:
            self._drop(sequence)
        for sequence in self._doomed:
            if sequence.is_live:
                self._drop(sequence)
        self._doomed.clear()
        return StepOutcome(prefilled, finished)

    # Drafts: a row may make several tokens in a step

    def reserve(self, row: int, tokens: int) -> list[TableWrite]:
        """Blocks for that many tokens more than a decoding row makes in the scheduled step.

        As many as are free without preempting anybody; `accept` must follow the commit.
        """
        sequence = self._decoding.rows[row]
        need = sequence.origin + self._decoding.clock + 1 + tokens
        writes: list[TableWrite] = []
        while len(sequence.blocks) * self.limits.block_tokens < need:
            if self.room.pool.num_free <= self.limits.spare_blocks:
                break
            writes.append(self.room.grow(sequence))
        return writes

    def room_of(self, row: int) -> int:
        """Tokens that the blocks of a decoding row hold beyond that of the scheduled step."""
        sequence = self._decoding.rows[row]
        cached = sequence.origin + self._decoding.clock
        return len(sequence.blocks) * self.limits.block_tokens - cached - 1

    def accept(self, id: int, tokens: int) -> None:
        """The committed step made that many tokens more for this request than one."""
        sequence = self._sequences.get(id)
        if sequence is None or sequence.row not in self._decoding.rows:
            return  # it is done, or was sent back to the queue
        decoding = self._decoding
        decoding.leave(sequence)
        sequence.prompt = sequence.origin + decoding.clock + tokens
        sequence.left = sequence.end - decoding.clock - tokens + 1
        decoding.join(sequence)
        if sequence.left == 1:
            self._drop(sequence)

    def horizon(self) -> int:
        """Steps in which rows only decode: nobody ends before the last, none comes or goes."""
        decoding = self._decoding
        self._clear_steps = 0
        if not decoding.rows or self._partial is not None or self._in_flight is not None:
            return 0
        if (self._waiting.count and not self._is_blocked) or (self._is_static and self._is_open):
            return 0  # somebody may come in; or the next step closes the batch
        num_free = self.room.pool.num_free
        self._clear_steps = decoding.steps_with(num_free, decoding.steps_to_end())
        return self._clear_steps

    def advance(self, steps: int) -> StepOutcome:
        """Makes `steps` decode steps at once, at most what `horizon` just said.

        Equal to as many single steps, blocks by number included; tables are not written out.
        """
        if not 1 <= steps <= self._clear_steps:
            raise ModelError(f"{steps} steps to advance, {self._clear_steps} to the horizon")
        self._clear_steps = 0
        decoding, pool = self._decoding, self.room.pool
        target = decoding.clock + steps
        while decoding.next_due < target:
            for sequence in decoding.serve():
                sequence.blocks += pool.take(1)
        done = decoding.tick(steps)
        if not done:
            return _NOTHING
        for sequence in done:
            self._drop(sequence)
        return StepOutcome((), [sequence.id for sequence in done])

    # Inside a step

    def _commit_chunk(self, chunk: PrefillChunk) -> list[Sequence]:
        """The chunk is in the cache; the sequence, if its first token was all it wanted."""
        sequence = self._sequences[chunk.id]
        sequence.computed = chunk.start + chunk.tokens
        self._is_blocked = False  # the head of the queue may now find more of its prompt cached
        if sequence.keys:
            self.room.name_blocks(sequence, sequence.computed)
        if chunk.is_last and sequence.left > 1:
            self._decoding.join(sequence)
        return [sequence] if chunk.is_last and sequence.left == 1 else []

    def _insert_ready(self, writes: list[TableWrite]) -> None:
        """Rows for sequences whose KV came from elsewhere."""
        while (head := self._waiting.head()) is not None and head.has_kv:
            if not self._admit(head, writes):
                return
            self._land(head)

    def _land(self, sequence: Sequence) -> None:
        """Its KV is in its blocks: it decodes in this very step."""
        sequence.has_kv = False
        self.room.name_blocks(sequence, sequence.prompt)
        self._decoding.join(sequence)

    def _admit(self, head: Sequence, writes: list[TableWrite]) -> bool:
        """Moves the head of the queue into a row, or blocks the queue until somebody leaves."""
        if self._is_static and self.num_running == 0:
            self._is_open = True
        self._is_blocked = not (self._is_open and self.room.hold(head, writes))
        if self._is_blocked:
            return False
        self._waiting.pop()
        return True

    def _chunk_prompts(self, chunks: list[PrefillChunk], writes: list[TableWrite]) -> None:
        """Spends what decode leaves of the budget, on the prompt that was begun, then on new ones.

        A prompt is cut only where the budget ends, so at most one is begun at any time.
        """
        budget = self.limits.max_step_tokens - len(self._decoding.rows)
        if self._partial is not None:
            budget -= self._chunk(self._partial, budget, chunks)
        while (head := self._waiting.head()) is not None and not head.has_kv:
            if budget < self.limits.chunk_tokens and self.room.has_row:
                return
            if not self._admit(head, writes):
                return
            budget -= self._chunk(head, budget, chunks)

    def _whole_prompts(self, chunks: list[PrefillChunk], writes: list[TableWrite]) -> None:
        """Prompts in one piece each; the first even if it alone is above the budget."""
        budget = self.limits.max_step_tokens
        while (head := self._waiting.head()) is not None and not head.has_kv:
            if chunks and head.prompt > budget:
                return
            if not self._admit(head, writes):
                break
            budget -= self._chunk(head, head.prompt, chunks)
        if not chunks and self.num_running:
            self._is_open = not self._is_static

    def _chunk(self, sequence: Sequence, budget: int, chunks: list[PrefillChunk]) -> int:
        """Appends the next chunk of a prompt, and counts its tokens."""
        left = sequence.prompt - sequence.computed
        is_last = left <= budget
        count = left if is_last else budget - budget % self.limits.chunk_tokens
        chunks.append(PrefillChunk(sequence.id, sequence.row, sequence.computed, count, is_last))
        self._partial = None if is_last else sequence
        return count

    def _grow(self, writes: list[TableWrite]) -> list[int]:
        """A block for each row that needs one in this step; the ids that had to make room."""
        decoding, preempted = self._decoding, list[int]()
        if decoding.next_due > decoding.clock:
            return preempted
        for sequence in decoding.serve():
            while self.room.pool.num_free == 0 and sequence.row >= 0:
                preempted.append(self._preempt())
            if sequence.row >= 0:
                writes.append(self.room.grow(sequence))
        return preempted

    def _preempt(self) -> int:
        """Sends the least important running sequence back to the queue."""
        running = list(self._decoding.rows.values())
        if self._partial is not None:
            running.append(self._partial)
        victim = max(running, key=lambda sequence: sequence.rank)
        clock = self._decoding.clock
        if victim is not self._partial:  # what it made is prompt now
            victim.prompt = victim.origin + clock + 1
            victim.left = victim.end - clock
        self._vacate(victim)
        self._waiting.push(victim)
        self.num_preemptions += 1
        return victim.id

    def _vacate(self, sequence: Sequence) -> None:
        """Takes row and blocks back from a running sequence."""
        if self._decoding.rows.get(sequence.row) is sequence:
            if sequence.named < len(sequence.keys):
                self.room.name_blocks(sequence, sequence.origin + self._decoding.clock)
            self._decoding.leave(sequence)
        elif self._partial is sequence:
            self._partial = None
        self.room.release(sequence)
        self._is_blocked = False

    def _drop(self, sequence: Sequence) -> None:
        """Done or cancelled: nothing of it stays."""
        sequence.is_live = False
        del self._sequences[sequence.id]
        self.num_requests -= 1
        if sequence.row >= 0:
            self._vacate(sequence)
        else:
            self._unqueue(sequence)
            self._is_blocked = False

    def _unqueue(self, sequence: Sequence) -> None:
        self._waiting.discard(sequence)

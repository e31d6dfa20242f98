"""`Ample`: a replica as its scheduler would run it, while rows and blocks suffice for all who came.

Then the scheduler has nothing to decide: everybody is admitted as soon as the budget of a step
allows, nobody is preempted, and nobody can tell whose block is which. So blocks are counted, not
handed out, and a step costs what changes in it. A request that might not fit is for `Scheduler`,
which takes over all that is under way; tests hold that nothing else shows which of them ran.
"""

from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Generic, NamedTuple, TypeVar

from rooflight.batching.request import Limits, Policy

Job = TypeVar("Job")  # whatever its owner knows a request by
# Plain tuples, because to make a record takes as long as all else that a request costs here:
# priority, number (they sort as the scheduler ranks), job, prompt, new tokens, whether its prompt
# was computed elsewhere, blocks that it has in the end
_Work = tuple[int, int, Job, int, int, bool, int]


class UnderWay(NamedTuple, Generic[Job]):
    """A request that is handed over, and how many of its positions are cached."""

    job: Job
    new_tokens: int
    has_kv: bool
    cached: int


class Ample(Generic[Job]):
    """Requests of a replica that all fit at once, with what they take in the end."""

    __slots__ = (
        *("_block_tokens", "_chunk_tokens", "_clock", "_computed", "_ends", "_most_blocks"),
        *("_most_rows", "_most_waiting", "_number", "_partial", "_reserved", "_step_tokens"),
        *("_waiting", "kv_tokens", "num_decoding", "num_requests"),
    )

    def __init__(self, limits: Limits) -> None:
        is_known = limits.policy is Policy.CONTINUOUS and limits.max_waiting_tokens is None
        self._most_rows = limits.max_rows if is_known else 0
        self._most_blocks = limits.num_blocks - limits.spare_blocks
        self._most_waiting = limits.max_waiting
        self._block_tokens = limits.block_tokens
        self._step_tokens, self._chunk_tokens = limits.max_step_tokens, limits.chunk_tokens
        self.num_requests = self.num_decoding = self.kv_tokens = 0  # as of `Scheduler`
        self._clock = 0  # decode steps
        self._number = 0
        self._reserved = 0  # blocks of all that are here, in the end
        self._waiting: list[_Work[Job]] = []  # heap
        self._partial: _Work[Job] | None = None  # its prompt is begun
        self._computed = 0  # tokens of that
        # Heap of rows: the decode step after which they are done.
        self._ends: list[tuple[int, _Work[Job]]] = []

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def add(self, job: Job, prompt: int, new: int, priority: int, has_kv: bool) -> bool:
        """Takes a request in; false if it might have to wait for a row, blocks or a place."""
        blocks = self._reserved - (1 - prompt - new) // self._block_tokens
        if (
            self.num_requests >= self._most_rows
            or blocks > self._most_blocks
            or len(self._waiting) >= self._most_waiting
        ):
            return False
        self._number += 1
        self.num_requests += 1
        own, self._reserved = blocks - self._reserved, blocks
        heappush(self._waiting, (priority, self._number, job, prompt, new, has_kv, own))
        return True

    def horizon(self) -> int:
        """As of `Scheduler`: steps in which rows only decode."""
        if self._waiting or self._partial or not self._ends:
            return 0
        return self._ends[0][0] - self._clock

    def advance(self, steps: int) -> list[Job]:
        """Makes so many decode steps, at most the horizon; who is done."""
        self._clock = clock = self._clock + steps
        self.kv_tokens += steps * self.num_decoding
        return self._leave() if self._ends[0][0] == clock else []

    def step(self) -> tuple[int, int, int, int, Sequence[Job], Sequence[Job]]:
        """Makes the next step: a token for each row, and chunks within what they leave.

        Out: rows, the positions they attend to, tokens of chunks, the positions that these attend
        to, and whose prompt is computed, or who is done.
        """
        waiting = self._waiting
        while waiting and waiting[0][5]:
            self._join(heappop(waiting))
        rows = self.num_decoding
        kv_tokens = self.kv_tokens + rows if rows else 0
        chunk_tokens = attended = 0
        prompts: list[_Work[Job]] = []
        budget, work = self._step_tokens - rows, self._partial
        while work or (waiting and budget >= self._chunk_tokens and not waiting[0][5]):
            if work:
                start, self._partial = self._computed, None
            else:
                work, start = heappop(waiting), 0
            count = work[3] - start
            if is_cut := count > budget:
                count = budget - budget % self._chunk_tokens
                self._partial, self._computed = work, start + count
            chunk_tokens += count
            attended += count * start + count * (count + 1) // 2
            if is_cut:
                break
            budget -= count
            prompts.append(work)
            work = None
        finished: list[Job] = []
        if rows:
            self._clock = clock = self._clock + 1
            self.kv_tokens += rows
            if self._ends[0][0] == clock:
                finished = self._leave()
        for work in prompts:
            if work[4] > 1:
                self._join(work)
            else:
                self.num_requests -= 1
                self._reserved -= work[6]
                finished.append(work[2])
        return rows, kv_tokens, chunk_tokens, attended, [work[2] for work in prompts], finished

    def hand_over(self) -> list[UnderWay[Job]]:
        """All that is here, in the order in which it came; nothing stays."""
        found = [(work, 0) for work in self._waiting]
        if self._partial:
            found.append((self._partial, self._computed))
        found += [(w, w[3] + w[4] - 1 - end + self._clock) for end, w in self._ends]
        self._waiting, self._ends, self._partial = [], [], None
        self.num_requests = self.num_decoding = self.kv_tokens = self._reserved = 0
        found.sort(key=lambda pair: pair[0][1])
        return [
            UnderWay(job, new, has_kv, cached) for (_, _, job, _, new, has_kv, _), cached in found
        ]

    def _join(self, work: _Work[Job]) -> None:
        heappush(self._ends, (self._clock + work[4] - 1, work))
        self.kv_tokens += work[3]
        self.num_decoding += 1

    def _leave(self) -> list[Job]:
        """Who is done at this clock, most important first."""
        ends, clock, found, cached = self._ends, self._clock, list[Job](), self.kv_tokens
        while ends and ends[0][0] == clock:
            _, _, job, prompt, new, _, blocks = heappop(ends)[1]
            cached -= prompt + new - 1
            self._reserved -= blocks
            found.append(job)
        self.kv_tokens = cached
        self.num_decoding -= len(found)
        self.num_requests -= len(found)
        return found

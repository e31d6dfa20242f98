"""`Decoding`: the rows that make a token each step, on a clock of decode steps.

All rows move together, so their lengths are kept as one clock and an origin each. A row has to be
touched only when it needs a block or ends: a step costs what happens in it, not its rows.
"""

import heapq
import math

from rooflight.batching.sequence import Sequence

Bucket = dict[int, Sequence]  # by row


class Agenda:
    """Clock -> the rows that something happens to; `first` is the clock of the next event."""

    __slots__ = ("_clocks", "buckets", "first")

    def __init__(self) -> None:
        self.buckets: dict[int, Bucket] = {}
        self._clocks: list[int] = []  # heap; may hold clocks whose bucket is gone
        self.first: int | float = math.inf

    def put(self, clock: int, sequence: Sequence) -> None:
        bucket = self.buckets.get(clock)
        if bucket is None:
            self.buckets[clock] = {sequence.row: sequence}
            heapq.heappush(self._clocks, clock)
            self.first = min(self.first, clock)
        else:
            bucket[sequence.row] = sequence

    def remove(self, clock: int, sequence: Sequence) -> None:
        bucket = self.buckets[clock]
        del bucket[sequence.row]
        if not bucket:
            del self.buckets[clock]
            if clock == self.first:
                self._find_first()

    def move(self, clock: int, later: int) -> Bucket:
        """Puts off all that is at `clock`, which is not empty."""
        bucket = self.buckets.pop(clock)
        there = self.buckets.get(later)
        if there is None:
            self.buckets[later] = bucket
            heapq.heappush(self._clocks, later)
        else:
            there |= bucket
        self._find_first()
        return bucket

    def _find_first(self) -> None:
        clocks, buckets = self._clocks, self.buckets
        while clocks and clocks[0] not in buckets:
            heapq.heappop(clocks)
        self.first = clocks[0] if clocks else math.inf


class Decoding:
    """Rows that decode, with the steps at which each needs a block and is done."""

    __slots__ = ("_block_tokens", "_due", "_ends", "clock", "kv_tokens", "rows")

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self.rows: Bucket = {}
        self.clock = 0
        self.kv_tokens = 0  # tokens in the cache, summed over rows
        self._due = Agenda()
        self._ends = Agenda()

    def join(self, sequence: Sequence) -> None:
        """A row whose prompt is in the cache and whose next token is made."""
        self.rows[sequence.row] = sequence
        self.kv_tokens += sequence.prompt
        sequence.origin = sequence.prompt - self.clock
        sequence.due = self.clock + len(sequence.blocks) * self._block_tokens - sequence.prompt
        sequence.end = self.clock + sequence.left - 1
        self._due.put(sequence.due, sequence)
        self._ends.put(sequence.end, sequence)

    def leave(self, sequence: Sequence) -> None:
        del self.rows[sequence.row]
        self.kv_tokens -= sequence.origin + self.clock
        self._due.remove(sequence.due, sequence)
        self._ends.remove(sequence.end, sequence)

    @property
    def next_due(self) -> int | float:
        """The first clock at which somebody needs a block."""
        return self._due.first

    def serve(self) -> list[Sequence]:
        """Who gets a block at the next clock at which anybody needs one, most important first.

        It lasts as many steps as a block has tokens.
        """
        clock = int(self._due.first)
        later = clock + self._block_tokens
        bucket = list(self._due.move(clock, later).values())
        for sequence in bucket:
            sequence.due = later
        if len(bucket) > 1:
            bucket.sort(key=_rank)
        return bucket

    def tick(self, steps: int) -> list[Sequence]:
        """All rows have made `steps` tokens; who is done, most important first."""
        self.clock += steps
        self.kv_tokens += steps * len(self.rows)
        if self._ends.first != self.clock:
            return []
        return sorted(self._ends.buckets[self.clock].values(), key=_rank)

    def steps_to_end(self) -> int:
        """Steps until the first row is done; there is one."""
        return int(self._ends.first) - self.clock

    def steps_with(self, num_free: int, steps: int) -> int:
        """How many of the next `steps` steps this many free blocks last."""
        block_tokens = self._block_tokens
        if num_free >= len(self.rows) * (steps // block_tokens + 1):
            return steps
        steps = min(steps, block_tokens)  # within these no row needs a second block
        for step in range(steps):
            num_free -= len(self._due.buckets.get(self.clock + step, ()))
            if num_free < 0:
                return step
        return steps


def _rank(sequence: Sequence) -> tuple[int, int]:
    return sequence.rank

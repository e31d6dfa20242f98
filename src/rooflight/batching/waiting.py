"""`WaitingQueue`: sequences that hold nothing yet, most important first, then oldest."""

import heapq

from rooflight.batching.sequence import Sequence


class WaitingQueue:
    """A heap by rank; a cancelled entry stays until it surfaces or the dead outnumber the live."""

    __slots__ = ("_dead", "_heap", "count", "tokens")

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[int, int], Sequence]] = []
        self._dead = 0
        self.count = 0  # live entries
        self.tokens = 0  # prompt tokens to compute

    def push(self, sequence: Sequence) -> None:
        heapq.heappush(self._heap, (sequence.rank, sequence))
        self.count += 1
        self.tokens += sequence.prompt

    def head(self) -> Sequence | None:
        heap = self._heap
        while heap and not heap[0][1].is_live:
            heapq.heappop(heap)
            self._dead -= 1
        return heap[0][1] if heap else None

    def pop(self) -> Sequence:
        """Takes the head, which the caller has just seen."""
        sequence = heapq.heappop(self._heap)[1]
        self.count -= 1
        self.tokens -= sequence.prompt
        return sequence

    def discard(self, sequence: Sequence) -> None:
        """Drops a waiting sequence that is no longer live."""
        self.count -= 1
        self.tokens -= sequence.prompt
        self._dead += 1
        if 2 * self._dead > len(self._heap):
            self._heap = [entry for entry in self._heap if entry[1].is_live]
            heapq.heapify(self._heap)
            self._dead = 0

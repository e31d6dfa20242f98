"""`Sequence`: a request on its way through the scheduler, with all that changes."""

import heapq

from rooflight.batching.request import Request


class Sequence:
    """One request: what it still needs, and the row and blocks it holds."""

    __slots__ = (
        "blocks",
        "computed",
        "due",
        "end",
        "has_kv",
        "id",
        "is_live",
        "keys",
        "left",
        "named",
        "origin",
        "prompt",
        "rank",
        "row",
    )

    def __init__(self, request: Request, number: int, *, has_kv: bool) -> None:
        self.id = request.id
        self.rank = (request.priority, number)
        self.prompt = request.prompt_tokens  # tokens to compute; grows by what a preemption loses
        self.left = request.max_new_tokens  # tokens to make, counted from the end of the prompt
        self.keys = request.keys
        self.has_kv = has_kv  # the prompt was computed elsewhere, its first token is made
        self.is_live = True  # false once cancelled or done
        self.blocks: list[int] = []
        self.named = 0  # leading blocks that were looked up or offered under their keys
        self.computed = 0  # prompt tokens in the cache
        self.row = -1
        # While it decodes, on the clock of decode steps:
        self.origin = 0  # cached tokens minus clock
        self.due = 0  # when it needs another block
        self.end = 0  # when it is done


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

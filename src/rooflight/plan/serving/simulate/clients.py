"""`Clients`: who sends a request only when an answer is there, and when that is.

In: requests, replicas. Out: the same tally as of an open stream. In a closed loop so many clients
send one request, or one session, after another: what benchmarks call concurrency. The load follows
the server, so that nothing ever waits for more than the others. Sessions may also come at times of
their own; in either case a turn waits for the answer before it.
"""

import heapq
import math
from collections import deque
from collections.abc import Iterator

from rooflight.plan.serving.simulate.arrivals import Arrival
from rooflight.plan.serving.simulate.replica import Replica, Ticket
from rooflight.plan.serving.simulate.tally import Slo, Tally


class Clients(Tally):
    """A tally that knows when each client is free again, and when the next turns are due."""

    def __init__(self, slo: Slo, count: int | None) -> None:
        super().__init__(slo)
        self._free = None if count is None else [0.0] * count  # heap; None: as many as come
        self._due: list[tuple[float, int, Arrival]] = []  # heap of turns
        self._held: dict[int, deque[Arrival]] = {}  # of sessions with a turn open: recorded ones

    @property
    def free_s(self) -> float:
        """When the first client sends its next request; inf while all wait for an answer."""
        if self._free is None:
            return 0.0
        return self._free[0] if self._free else math.inf

    def finish(self, ticket: Ticket, end_s: float) -> None:
        super().finish(ticket, end_s)
        then = ticket.arrival.then
        if then is not None:
            heapq.heappush(self._due, (end_s + then.time_s, ticket.id, then))
        else:
            self._end(ticket, end_s)

    def reject(self, ticket: Ticket) -> None:
        """The session ends with it, unless its next turn is recorded."""
        super().reject(ticket)
        self._end(ticket, ticket.arrival.time_s)

    def _end(self, ticket: Ticket, end_s: float) -> None:
        held = self._held.get(ticket.arrival.session)
        if held:
            later = held.popleft()
            heapq.heappush(self._due, (max(end_s, later.time_s), ticket.id, later))
            return
        self._held.pop(ticket.arrival.session, None)
        if self._free is not None:
            heapq.heappush(self._free, end_s)

    def sent(self, arrivals: Iterator[Arrival], replicas: list[Replica]) -> Iterator[Arrival]:
        """Requests with the times at which they go out; in between, replicas make their steps."""
        first = next(arrivals, None)
        while True:
            due_s = self._due[0][0] if self._due else math.inf
            start_s = math.inf if first is None else max(first.time_s, self.free_s)
            replica = min(replicas, key=Replica.next_s)
            if replica.next_s() < min(due_s, start_s):
                replica.run_next()
            elif due_s <= start_s:
                if due_s == math.inf:
                    return
                yield heapq.heappop(self._due)[2]._replace(time_s=due_s)
            elif first is not None:
                if first.session in self._held:
                    self._held[first.session].append(first)
                else:
                    yield self._begin(first, start_s)
                first = next(arrivals, None)

    def _begin(self, first: Arrival, time_s: float) -> Arrival:
        if self._free is not None:
            heapq.heappop(self._free)
        if first.session >= 0 and first.then is None:
            self._held[first.session] = deque()
        return first._replace(time_s=time_s)

"""`Clients`: a closed loop, in which each client sends its next request when its last is done.

In: requests without times, replicas. Out: the same tally as of an open stream. What benchmarks call
concurrency: the load follows the server, so that nothing ever waits for more than the others.
"""

import heapq
import math
from collections.abc import Iterator

from rooflight.plan.serving.simulate.arrivals import Arrival
from rooflight.plan.serving.simulate.replica import Replica, Ticket
from rooflight.plan.serving.simulate.tally import Slo, Tally


class Clients(Tally):
    """The tally of a closed loop, which knows when each client is free again."""

    def __init__(self, slo: Slo, count: int) -> None:
        super().__init__(slo)
        self._free = [0.0] * count  # heap

    @property
    def free_s(self) -> float:
        """When the first client sends its next request; inf while all wait for an answer."""
        return self._free[0] if self._free else math.inf

    def finish(self, ticket: Ticket, end_s: float) -> None:
        super().finish(ticket, end_s)
        heapq.heappush(self._free, end_s)

    def reject(self, time_s: float) -> None:
        super().reject(time_s)
        heapq.heappush(self._free, time_s)

    def sent(self, arrivals: Iterator[Arrival], replicas: list[Replica]) -> Iterator[Arrival]:
        """Requests with the times at which they go out; in between, replicas make their steps."""
        for arrival in arrivals:
            replica = min(replicas, key=Replica.next_s)
            while replica.next_s() < self.free_s:
                replica.run_next()
                replica = min(replicas, key=Replica.next_s)
            yield arrival._replace(time_s=heapq.heappop(self._free))

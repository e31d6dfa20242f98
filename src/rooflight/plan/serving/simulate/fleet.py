"""Fleets: replicas that do everything, or some that prefill and hand over to some that generate.

A fleet takes arrivals in order of time. Replicas run lazily: each only when something comes to it.
"""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from rooflight.batching.request import Admission, Limits
from rooflight.batching.ring import HashRing, load_bound
from rooflight.plan.serving.simulate.arrivals import Arrival
from rooflight.plan.serving.simulate.clock import StepClock
from rooflight.plan.serving.simulate.replica import Replica, Ticket
from rooflight.plan.serving.simulate.tally import Tally


@dataclass(frozen=True, slots=True)
class Transfer:
    """The KV cache of a prompt on its way from a prefill to a generate replica."""

    bytes_per_token: float
    bytes_per_s: float
    latency_s: float = 0.0

    def seconds(self, tokens: int) -> float:
        return self.latency_s + tokens * self.bytes_per_token / self.bytes_per_s


_LEAST_BOUND = 8  # requests of a replica that keeps its sessions, as of `rooflight route`


class Router:
    """Of two replicas drawn at random the one with fewer requests: nearly as good as of all.

    The turns of a session go to the replica that the ring of `rooflight route` gives it.
    """

    def __init__(self, replicas: Sequence[Replica]) -> None:
        self._replicas = replicas
        self._random = Random(0)
        self._ring: HashRing | None = None

    def choose(self, time_s: float, session: int = -1) -> Replica:
        """The replica for a request that comes now, run up to this time."""
        replicas, random = self._replicas, self._random.random
        if (count := len(replicas)) == 1:
            first = second = replicas[0]
        elif session >= 0:
            return self._keeper(time_s, session)
        else:
            at = int(random() * count)
            first = replicas[at]
            second = replicas[at - 1 - int(random() * (count - 1))]
        if time_s >= first.steady_until_s:
            first.run_events(time_s)
        if time_s >= second.steady_until_s:
            second.run_events(time_s)
        is_first = first.batch.num_requests <= second.batch.num_requests
        chosen = first if is_first else second
        chosen.catch_up(time_s)
        return chosen

    def _keeper(self, time_s: float, session: int) -> Replica:
        for replica in self._replicas:
            replica.run_events(time_s)
        named = {str(at): replica for at, replica in enumerate(self._replicas)}
        self._ring = ring = self._ring or HashRing([*named])
        loads = {name: replica.load for name, replica in named.items()}
        bound = load_bound(loads, least=_LEAST_BOUND)
        order = ring.order(str(session).encode())
        chosen = named[next(name for name in order if loads[name] < bound)]
        chosen.catch_up(time_s)
        return chosen


class TogetherFleet:
    """Every replica prefills and generates."""

    def __init__(self, limits: Limits, clock: StepClock, tally: Tally, *, replicas: int) -> None:
        self.replicas = [Replica(limits, clock, tally.finish) for _ in range(replicas)]
        self._router = Router(self.replicas)
        self._tally = tally

    def arrive(self, ticket: Ticket) -> None:
        arrival = ticket.arrival
        replica = self._router.choose(arrival.time_s, arrival.session)
        if replica.add(ticket, arrival.output_tokens) is not Admission.ADMITTED:
            self._tally.reject(ticket)

    def drain(self) -> None:
        """Runs to the end of the last request."""
        for replica in self.replicas:
            replica.run_until(math.inf)


class DisaggregatedFleet:
    """Some replicas compute prompts and first tokens, the others all further tokens.

    What prefill replicas finish is handed over in order of time: now and then they are all run up
    to the present, and whatever arrived by then at the generate side is put in there.
    """

    def __init__(
        self,
        limits: Limits,
        clock: StepClock,
        tally: Tally,
        *,
        prefill_replicas: int,
        generate_replicas: int,
        transfer: Transfer,
    ) -> None:
        # nothing decodes on a prefill replica: a prompt frees its blocks with its first token
        self._prefills = [Replica(limits, clock, self._hand_over) for _ in range(prefill_replicas)]
        generate = replace(limits, max_waiting=2**62, max_waiting_tokens=None)
        self._generates = [Replica(generate, clock, tally.finish) for _ in range(generate_replicas)]
        self.replicas = [*self._prefills, *self._generates]
        self._enter, self._leave = Router(self._prefills), Router(self._generates)
        self._transfer = transfer
        self._under_way: list[tuple[float, int, Ticket]] = []
        self._tally = tally
        self._count = 0

    def arrive(self, ticket: Ticket) -> None:
        arrival = ticket.arrival
        self._count += 1
        if self._count % (4 * len(self._prefills)) == 0:
            self._catch_up(arrival.time_s)
        limits = self._generates[0].scheduler.limits
        replica = self._enter.choose(arrival.time_s, arrival.session)
        is_too_long = arrival.input_tokens + arrival.output_tokens - 1 > limits.pool_tokens
        if is_too_long or replica.add(ticket, 1) is not Admission.ADMITTED:
            self._tally.reject(ticket)

    def drain(self) -> None:
        """Runs to the end of the last request."""
        self._catch_up(math.inf)
        for replica in self._generates:
            replica.run_until(math.inf)

    def _hand_over(self, ticket: Ticket, end_s: float) -> None:
        arrival: Arrival = ticket.arrival
        if arrival.output_tokens == 1:
            self._tally.finish(ticket, end_s)
            return
        there_s = end_s + self._transfer.seconds(arrival.input_tokens)
        heapq.heappush(self._under_way, (there_s, ticket.id, ticket))

    def _catch_up(self, time_s: float) -> None:
        """Every prefill that begins before `time_s`, every hand-over that is there by then."""
        for replica in self._prefills:
            replica.run_until(time_s)
        while self._under_way and self._under_way[0][0] <= time_s:
            there_s, _, ticket = heapq.heappop(self._under_way)
            self._leave.choose(there_s).insert(ticket)


Fleet = TogetherFleet | DisaggregatedFleet

"""The event loop: when does each message of a schedule leave and arrive?

One message at a time on each directed link; of those ready, the lowest rank goes first.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from rooflight.costs.netsim.torus import LinkSchedule, Message
from rooflight.errors import ModelError


class Flight(NamedTuple):
    """A message with the ticks at which it leaves, frees its link, and arrives."""

    message: Message
    start: int
    sent: int
    end: int


def run(schedule: LinkSchedule) -> list[Flight]:
    """When each message flies, in the order of the schedule."""
    return fly(schedule.messages)


def fly(messages: list[Message]) -> list[Flight]:
    """When each of these messages flies, in their order."""
    flights: list[Flight] = []
    for message, start in zip(messages, _NetworkRun(messages).finish(), strict=True):
        sent = start + message.send_ticks
        flights.append(Flight(message, start, sent, sent + message.flight_ticks))
    return flights


def end_of(flights: Sequence[Flight]) -> int:
    """The tick of the last arrival."""
    return max((f.end for f in flights), default=0)


def busiest(flights: Sequence[Flight]) -> int:
    """How long the busiest link sends, in ticks."""
    busy = Counter[int]()
    for flight in flights:
        busy[flight.message.link] += flight.message.send_ticks
    return max(busy.values(), default=0)


def mirror(flights: Sequence[Flight]) -> list[Flight]:
    """The same run backwards in time, every message going the other way.

    Link times stay apart: a link's sends all move by the same flight time.
    """
    end = end_of(flights)
    return [
        Flight(_turned(f.message), end - f.end, end - f.end + f.message.send_ticks, end - f.start)
        for f in flights
    ]


def later(flights: Sequence[Flight], ticks: int) -> list[Flight]:
    """The same run, begun so much later."""
    return [Flight(f.message, f.start + ticks, f.sent + ticks, f.end + ticks) for f in flights]


def _turned(message: Message) -> Message:
    return message._replace(link=message.back_link, source=message.target, target=message.source)


class _NetworkRun:
    """The state of one run: what waits, what is queued on which link, what is under way."""

    def __init__(self, messages: list[Message]) -> None:
        self.messages = messages
        self.starts = [-1] * len(messages)
        self.missing = [len(m.after) for m in messages]
        self.followers: list[list[int]] = [[] for _ in messages]
        self.queues: dict[int, list[tuple[int, int]]] = {m.link: [] for m in messages}
        self.busy: set[int] = set()
        self.events: list[tuple[int, int]] = []  # (tick, 2 * message + has arrived)
        for index, message in enumerate(messages):
            for earlier in message.after:
                self.followers[earlier].append(index)
            if not message.after:
                heappush(self.queues[message.link], (message.rank, index))

    def finish(self) -> list[int]:
        """Plays all events; those of one tick together, so that ranks decide and not luck."""
        self._start(self.queues, 0)
        events = self.events
        while events:
            tick = events[0][0]
            touched: set[int] = set()
            while events and events[0][0] == tick:
                index, has_arrived = divmod(heappop(events)[1], 2)
                if has_arrived:
                    self._arrive(index, touched)
                else:
                    self.busy.remove(self.messages[index].link)
                    touched.add(self.messages[index].link)
            self._start(touched, tick)
        if -1 in self.starts:
            raise ModelError(f"message {self.starts.index(-1)} of a schedule never leaves")
        return self.starts

    def _arrive(self, index: int, touched: set[int]) -> None:
        """Queues the messages that waited for this one, and notes their links."""
        for follower in self.followers[index]:
            self.missing[follower] -= 1
            if not self.missing[follower]:
                message = self.messages[follower]
                heappush(self.queues[message.link], (message.rank, follower))
                touched.add(message.link)

    def _start(self, links: Iterable[int], tick: int) -> None:
        for link in links:
            queue = self.queues[link]
            if queue and link not in self.busy:
                index = heappop(queue)[1]
                message = self.messages[index]
                self.starts[index] = tick
                self.busy.add(link)
                sent = tick + message.send_ticks
                heappush(self.events, (sent, 2 * index))
                heappush(self.events, (sent + message.flight_ticks, 2 * index + 1))

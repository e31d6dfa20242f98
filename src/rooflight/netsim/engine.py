"""The event loop: when does each message of a schedule leave and arrive?

One message at a time on each directed link; of those ready, the lowest rank goes first.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush

from rooflight.errors import ModelError
from rooflight.netsim.schedule import Message, Schedule


@dataclass(frozen=True, slots=True)
class Flight:
    """A message with the ticks at which it leaves, frees its link, and arrives."""

    message: Message
    start: int
    sent: int
    end: int


def run(schedule: Schedule) -> list[Flight]:
    """When each message flies, in the order of the schedule."""
    flights: list[Flight] = []
    for message, start in zip(schedule.messages, _Run(schedule.messages).finish(), strict=True):
        sent = start + message.send_ticks
        flights.append(Flight(message, start, sent, sent + message.flight_ticks))
    return flights


def end_of(flights: Sequence[Flight]) -> int:
    """The tick of the last arrival."""
    return max((f.end for f in flights), default=0)


def mirror(flights: Sequence[Flight]) -> list[Flight]:
    """The same run backwards in time, every message going the other way.

    Link times stay apart: a link's sends all move by the same flight time.
    """
    end = end_of(flights)
    return [
        Flight(_turned(f.message), end - f.end, end - f.end + f.message.send_ticks, end - f.start)
        for f in flights
    ]


def _turned(message: Message) -> Message:
    return replace(message, link=message.back_link, source=message.target, target=message.source)


class _Run:
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

    def finish(self) -> list[int]:
        for index, message in enumerate(self.messages):
            if not message.after:
                heappush(self.queues[message.link], (message.rank, index))
        for link in self.queues:
            self._start_next(link, 0)
        events = self.events
        while events:
            tick = events[0][0]
            touched: set[int] = set()
            while events and events[0][0] == tick:
                touched |= self._happen(heappop(events)[1])
            for link in touched:
                self._start_next(link, tick)
        if -1 in self.starts:
            raise ModelError(f"message {self.starts.index(-1)} of a schedule never leaves")
        return self.starts

    def _happen(self, event: int) -> set[int]:
        """A link comes free, or a message arrives; the links that may now have work to start."""
        index, has_arrived = divmod(event, 2)
        if not has_arrived:
            link = self.messages[index].link
            self.busy.discard(link)
            return {link}
        touched: set[int] = set()
        for follower in self.followers[index]:
            self.missing[follower] -= 1
            if not self.missing[follower]:
                message = self.messages[follower]
                heappush(self.queues[message.link], (message.rank, follower))
                touched.add(message.link)
        return touched

    def _start_next(self, link: int, tick: int) -> None:
        queue = self.queues[link]
        if link in self.busy or not queue:
            return
        index = heappop(queue)[1]
        message = self.messages[index]
        self.starts[index] = tick
        self.busy.add(link)
        sent = tick + message.send_ticks
        heappush(self.events, (sent, 2 * index))
        heappush(self.events, (sent + message.flight_ticks, 2 * index + 1))

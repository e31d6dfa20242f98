"""`LinkSchedule`: the messages of a collective, each over one link, with what it must wait for.

A message takes its link for `bytes / rate` and is there `hop_s` later (store and forward). It
carries a set of payload units of one piece of the array, as the bits of an integer.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from rooflight.costs.netsim.torus import Torus


class Message(NamedTuple):  # a tuple, because runs make them by the hundred thousand
    """One payload over one link; `lands` if the target keeps it, else it is only passing by."""

    link: int
    back_link: int
    source: int
    target: int
    nbytes: float
    send_ticks: int
    flight_ticks: int
    after: tuple[int, ...]
    rank: int
    piece: int
    units: int
    lands: bool


class Cargo(NamedTuple):
    """What a chain of messages carries, and how urgent it is (a low rank goes first)."""

    nbytes: float
    piece: int
    units: int
    rank: int


@dataclass(frozen=True, slots=True)
class LinkSchedule:
    """Messages in the order they were added; `after` names earlier ones by index."""

    torus: Torus
    messages: list[Message] = field(default_factory=list[Message])

    def send(
        self, cargo: Cargo, *, source: int, dim: int, step: int, links: int, after: Sequence[int]
    ) -> int:
        """Sends over `links` links along a dim, forwarded whole at each; the last one's index."""
        torus, at, waits = self.torus, source, tuple(after)
        send_ticks, flight_ticks = torus.send_ticks(cargo.nbytes, dim), torus.flight_ticks(dim)
        for left in range(links, 0, -1):
            target = torus.neighbour(at, dim=dim, step=step)
            self.messages.append(
                Message(
                    link=torus.link(at, dim=dim, step=step),
                    back_link=torus.link(target, dim=dim, step=-step),
                    source=at,
                    target=target,
                    nbytes=cargo.nbytes,
                    send_ticks=send_ticks,
                    flight_ticks=flight_ticks,
                    after=waits,
                    rank=cargo.rank,
                    piece=cargo.piece,
                    units=cargo.units,
                    lands=left == 1,
                )
            )
            at, waits = target, (len(self.messages) - 1,)
        return waits[0]

"""`Torus`: chips as integers, directed links as integers, and who is whose neighbour.

In: a `Slice`. Chips are numbered row by row, the last axis fastest.

`LinkSchedule`: the messages of a collective, each over one link, with what it must wait for. A
message takes its link for `bytes / rate` and is there `hop_s` later (store and forward). It carries
a set of payload units of one piece of the array, as the bits of an integer.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from rooflight.errors import UsageError
from rooflight.hardware.mesh import Ring
from rooflight.hardware.slice import Slice, TorusDim

TICKS_PER_S = 10**15  # time is counted in whole femtoseconds, so that equal times are equal


@dataclass(frozen=True, slots=True)
class Torus:
    """The chips of one slice and the links between them.

    >>> from rooflight.hardware.slice import parse_slice
    >>> torus = torus_of(parse_slice("v5e:4x4"))
    >>> torus.num_chips, torus.neighbour(0, dim=1, step=1), torus.position(7, dim=0)
    (16, 1, 1)
    """

    dims: tuple[TorusDim, ...]
    pitches: tuple[int, ...]  # how far apart the numbers of neighbours along a dim are
    num_chips: int

    def dim_of(self, ring: Ring) -> int:
        return next(i for i, d in enumerate(self.dims) if d.name == ring.dim)

    def position(self, chip: int, *, dim: int) -> int:
        return chip // self.pitches[dim] % self.dims[dim].size

    def neighbour(self, chip: int, *, dim: int, step: int) -> int:
        """The chip `step` links away along `dim`, around the end where the axis wraps."""
        here, size = self.position(chip, dim=dim), self.dims[dim].size
        there = (here + step) % size
        assert there == here + step or self.dims[dim].wraps, "a route leaves the slice"
        return chip + (there - here) * self.pitches[dim]

    def link(self, chip: int, *, dim: int, step: int) -> int:
        """The number of the directed link that leaves a chip this way."""
        return 2 * (len(self.dims) * chip + dim) + (step > 0)

    def member(self, chip: int, ring: Ring) -> int:
        """Which member of its own ring a chip is: 0 to ring.size - 1."""
        return self.position(chip, dim=self.dim_of(ring)) // ring.stride % ring.size

    def send_ticks(self, nbytes: float, dim: int) -> int:
        return round(nbytes / self.dims[dim].link_bytes_per_s * TICKS_PER_S)

    def flight_ticks(self, dim: int) -> int:
        return round(self.dims[dim].hop_s * TICKS_PER_S)


def torus_of(target: Slice) -> Torus:
    """The torus of a slice; chips behind switches have none."""
    dims = tuple(d for d in target.dims if isinstance(d, TorusDim))
    if not dims:
        raise UsageError(
            f"{target} has no torus, and only torus links are simulated",
            hint="name a slice of a torus, such as v5e:4x4",
        )
    pitches = tuple(math.prod(d.size for d in dims[i + 1 :]) for i in range(len(dims)))
    return Torus(dims, pitches, math.prod(d.size for d in dims))


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

"""The messages of a permute: every chip streams its bytes to the next chip of its group.

The last chip sends to the first: one hop round a ring, the long way back along a line. Bytes
stream in packets, each forwarded on its own. Units: bit `origin` of packet number `piece`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rooflight.costs.netsim.schedule import Cargo, LinkSchedule
from rooflight.costs.netsim.torus import Torus
from rooflight.hardware.mesh import Ring

_SCALE = 1 << 24  # of the rank of a packet within its stream
_PACKETS = 128  # for each member a message passes: filling the pipeline then costs under 1 %


@dataclass(frozen=True, slots=True)
class Leg:
    """A straight part of a route: links along a dim, forwards or backwards, past some members."""

    dim: int
    step: int
    links: int
    members: int


def shift_schedule(torus: Torus, nbytes: float, rings: Sequence[Ring]) -> LinkSchedule:
    """Every chip of every group sends to the next; the innermost axis moves first."""
    schedule = LinkSchedule(torus)
    for chip in range(torus.num_chips):
        routes = [_legs(torus, rings, chip, step) for step in (1, -1)]
        if routes[0] == routes[1]:
            routes = routes[:1]
        stream(schedule, nbytes, chip, routes, fair=len(rings) > 1)
    return schedule


def next_member(torus: Torus, rings: Sequence[Ring], chip: int) -> int:
    """The chip after this one in its group, counting the last axis fastest."""
    for ring in reversed(rings):
        member = torus.member(chip, ring)
        pitch = ring.stride * torus.pitches[torus.dim_of(ring)]
        if member + 1 < ring.size:
            return chip + pitch
        chip -= member * pitch
    return chip


def _legs(torus: Torus, rings: Sequence[Ring], chip: int, two_ring_step: int) -> list[Leg]:
    """The shortest way to the next member; a ring of two may be taken either way round."""
    legs: list[Leg] = []
    for ring in reversed(rings):
        is_last = torus.member(chip, ring) == ring.size - 1
        step, members = 1, 1
        if ring.wraps and ring.size == 2:
            step = two_ring_step
        elif is_last and not ring.wraps:
            step, members = -1, ring.size - 1
        legs.append(Leg(torus.dim_of(ring), step, members * ring.stride, members))
        if not is_last:
            break
    return legs


def stream(
    schedule: LinkSchedule, nbytes: float, chip: int, routes: Sequence[list[Leg]], *, fair: bool
) -> None:
    """Cuts the bytes into packets and deals them out over routes of one length.

    Streams that meet on a link go one after another, the farthest to go first; if `fair` they take
    turns, so that the links after the next turn have something to do at once.
    """
    links = sum(leg.links for leg in routes[0])
    members = sum(leg.members for leg in routes[0])
    packets = len(routes) * (_num_packets(schedule.torus, nbytes, members) if links > 1 else 1)
    for packet in range(packets):
        progress = packet * _SCALE // packets
        at, waits, left = chip, (), links
        for leg in routes[packet % len(routes)]:
            for _ in range(leg.links):
                rank = progress if fair else progress - left * _SCALE
                cargo = Cargo(nbytes / packets, packet, 1 << chip, rank)
                index = schedule.send(
                    cargo, source=at, dim=leg.dim, step=leg.step, links=1, after=waits
                )
                at = schedule.torus.neighbour(at, dim=leg.dim, step=leg.step)
                waits, left = (index,), left - 1


def _num_packets(torus: Torus, nbytes: float, members: int) -> int:
    """Enough to keep every link of a route busy; none so small that its sending is no time."""
    hop_bytes = torus.dims[0].link_bytes_per_s * torus.dims[0].hop_s
    return max(1, min(_PACKETS * members, math.ceil(2 * _PACKETS * nbytes / hop_bytes)))

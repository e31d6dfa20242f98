"""The messages of an all-to-all: every chunk goes the shortest way, axis by axis.

Units: two halves of the chunk each chip has for each other, bits 2 * (origin * chips + target)
and one above; the halves of an antipodal chunk go round the ring in opposite ways.

The messages of a permute: every chip streams its bytes to the next chip of its group. The last chip
sends to the first: one hop round a ring, the long way back along a line. Bytes stream in packets,
each forwarded on its own. Units: bit `origin` of packet number `piece`.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from rooflight.costs.netsim.gather import Share, half_mask, reach
from rooflight.costs.netsim.torus import Cargo, LinkSchedule, Torus
from rooflight.hardware.mesh import Ring

_SCALE = 1 << 24  # of the rank of a packet within its stream
_PACKETS = 128  # for each member a message passes: filling the pipeline then costs under 1 %

Blocks = list[dict[int, int]]  # for each chip: member of the ring it must go to -> units


def exchange_schedule(
    torus: Torus,
    chunk_bytes: float,
    shares: Sequence[Share],
    *,
    members: Sequence[Sequence[int]],
    pieces: int,
    merged: bool,
) -> LinkSchedule:
    """All groups exchange at once.

    `merged`: what a chip sends on goes in one message a hop (few, large: best when latency-bound);
    else every block travels alone, the farthest first (best on a line, where links differ).
    """
    schedule = LinkSchedule(torus)
    for number, share in enumerate(shares):
        phases = _phases(torus, share.order, members)
        nbytes = chunk_bytes * share.fraction / pieces
        for turn in range(pieces):
            piece = number * pieces + turn
            ready: list[list[int]] = [[] for _ in range(torus.num_chips)]
            for phase, (ring, blocks) in enumerate(zip(share.order, phases, strict=True)):
                cargo = Cargo(nbytes, piece, 0, (phase << 28) + (turn << 12))
                ready = _exchange_phase(schedule, ring, blocks, cargo, ready, merged=merged)
    return schedule


def _phases(torus: Torus, order: Sequence[Ring], members: Sequence[Sequence[int]]) -> list[Blocks]:
    """What each chip holds for each member of each axis, as the axes are visited in order."""
    chips = range(torus.num_chips)
    held = [[(chip, target) for target in members[chip]] for chip in chips]
    phases: list[Blocks] = []
    for ring in order:
        blocks: Blocks = [defaultdict(int) for _ in chips]
        moved: list[list[tuple[int, int]]] = [[] for _ in chips]
        place = [torus.member(chip, ring) for chip in chips]
        pitch = ring.stride * torus.pitches[torus.dim_of(ring)]
        for chip in chips:
            for origin, target in held[chip]:
                blocks[chip][place[target]] |= 3 << (2 * (origin * len(chips) + target))
                moved[chip + (place[target] - place[chip]) * pitch].append((origin, target))
        phases.append(blocks)
        held = moved
    return phases


def _exchange_phase(
    schedule: LinkSchedule,
    ring: Ring,
    blocks: Blocks,
    base: Cargo,
    ready: list[list[int]],
    *,
    merged: bool,
) -> list[list[int]]:
    arrived = [[*waits] for waits in ready]
    send = _send_merged if merged else _send_apart
    for chip, waits in enumerate(ready):
        for step in (1, -1):
            route = _route(schedule.torus, ring, chip, step, blocks[chip])
            for target, index in send(schedule, ring, chip, step, route, base, waits):
                arrived[target].append(index)
    return arrived


def _route(torus: Torus, ring: Ring, chip: int, step: int, blocks: dict[int, int]) -> list[int]:
    """The units that go 1, 2, ... members far in one direction."""
    whole, half = reach(torus, ring, chip, step)
    here = torus.member(chip, ring)
    route = [blocks.get((here + step * d) % ring.size, 0) for d in range(1, whole + half + 1)]
    if half:
        route[-1] &= half_mask(torus.num_chips**2, step)
    return route


def _send_merged(
    schedule: LinkSchedule,
    ring: Ring,
    chip: int,
    step: int,
    route: list[int],
    base: Cargo,
    after: Sequence[int],
) -> list[tuple[int, int]]:
    torus, dim = schedule.torus, schedule.torus.dim_of(ring)
    landed: list[tuple[int, int]] = []
    at, waits = chip, after
    for hop in range(len(route)):
        units = 0
        for block in route[hop:]:
            units |= block
        cargo = _load(base, units, base.rank + hop)
        index = schedule.send(cargo, source=at, dim=dim, step=step, links=ring.stride, after=waits)
        at, waits = torus.neighbour(at, dim=dim, step=step * ring.stride), (index,)
        landed.append((at, index))
    return landed


def _send_apart(
    schedule: LinkSchedule,
    ring: Ring,
    chip: int,
    step: int,
    route: list[int],
    base: Cargo,
    after: Sequence[int],
) -> list[tuple[int, int]]:
    torus, dim = schedule.torus, schedule.torus.dim_of(ring)
    landed: list[tuple[int, int]] = []
    for distance, units in reversed(list(enumerate(route, start=1))):
        at, waits = chip, after
        for left in range(distance, 0, -1):
            cargo = _load(base, units, base.rank + 255 - left)
            index = schedule.send(
                cargo, source=at, dim=dim, step=step, links=ring.stride, after=waits
            )
            at, waits = torus.neighbour(at, dim=dim, step=step * ring.stride), (index,)
        landed.append((at, waits[0]))
    return landed


def _load(base: Cargo, units: int, rank: int) -> Cargo:
    return Cargo(base.nbytes * units.bit_count() / 2, base.piece, units, rank)


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

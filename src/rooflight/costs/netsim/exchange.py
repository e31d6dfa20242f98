"""The messages of an all-to-all: every chunk goes the shortest way, axis by axis.

Units: two halves of the chunk each chip has for each other, bits 2 * (origin * chips + target)
and one above; the halves of an antipodal chunk go round the ring in opposite ways.
"""

from collections import defaultdict
from collections.abc import Sequence

from rooflight.costs.netsim.gather import half_mask, reach
from rooflight.costs.netsim.schedule import Cargo, LinkSchedule
from rooflight.costs.netsim.shares import Share
from rooflight.costs.netsim.torus import Torus
from rooflight.hardware.mesh import Ring

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

"""The messages of an all-gather; its mirror image in time is the reduce-scatter.

Along one axis every chip sends its block both ways round the ring (the block for the antipode in
halves), or to both ends of the line. Over several axes a share of the array goes axis by axis,
the block growing on the way. Units: the two halves of each chip's shard, bit 2 * chip and the next.
"""

from collections.abc import Sequence
from functools import cache

from rooflight.costs.netsim.schedule import Cargo, LinkSchedule
from rooflight.costs.netsim.shares import Share
from rooflight.costs.netsim.torus import Torus
from rooflight.hardware.mesh import Ring


def gather_schedule(
    torus: Torus, shard_bytes: float, shares: Sequence[Share], *, pieces: int, growing: bool
) -> LinkSchedule:
    """All groups gather at once; about so many pieces in all overlap on different axes."""
    schedule = LinkSchedule(torus)
    piece = 0
    for share in shares:
        done = 0.0
        for part in _parts(max(1, round(pieces * share.fraction)), growing=growing):
            nbytes = shard_bytes * share.fraction * part
            _gather_piece(schedule, share.order, nbytes, piece, done)
            piece, done = piece + 1, done + part
    return schedule


def _parts(count: int, *, growing: bool) -> list[float]:
    """Fractions that sum to 1: alike, or each 1 + 4 / count of the last.

    A later axis idles until the first piece reaches it, so a small first piece helps; but an axis
    with no slack falls behind when pieces grow.
    """
    weights = [(1 + 4 * growing / count) ** i for i in range(count)]
    return [w / sum(weights) for w in weights]


def own_units(chip: int) -> int:
    return 3 << (2 * chip)


def _gather_piece(
    schedule: LinkSchedule, order: Sequence[Ring], nbytes: float, piece: int, done: float
) -> None:
    chips = range(schedule.torus.num_chips)
    blocks = [own_units(chip) for chip in chips]
    ready: list[list[int]] = [[] for _ in chips]
    for phase, ring in enumerate(order):
        # Early phases first: they feed the other axes. Then all shares in step.
        rank = (phase << 40) + (round(done * 2**20) << 12)
        gathered, arrived = list(blocks), [[*waits] for waits in ready]
        for chip in chips:
            cargo = Cargo(nbytes, piece, blocks[chip], rank)
            for step in (1, -1):
                for target, index, units in _spread(schedule, ring, chip, step, cargo, ready[chip]):
                    gathered[target] |= units
                    arrived[target].append(index)
        blocks, ready = gathered, arrived
        nbytes *= ring.size


def _spread(
    schedule: LinkSchedule, ring: Ring, chip: int, step: int, block: Cargo, after: Sequence[int]
) -> list[tuple[int, int, int]]:
    """Sends a block one way along a ring: (member reached, last message, units) for each member."""
    torus, dim = schedule.torus, schedule.torus.dim_of(ring)
    whole, half = reach(torus, ring, chip, step)
    landed: list[tuple[int, int, int]] = []
    at, waits, nbytes, units = chip, after, block.nbytes, block.units
    for hop in range(whole + half):
        if hop == whole:
            nbytes, units = nbytes / 2, units & half_mask(torus.num_chips, step)
        cargo = Cargo(nbytes, block.piece, units, block.rank + hop)
        index = schedule.send(cargo, source=at, dim=dim, step=step, links=ring.stride, after=waits)
        at, waits = torus.neighbour(at, dim=dim, step=step * ring.stride), (index,)
        landed.append((at, index, units))
    return landed


def reach(torus: Torus, ring: Ring, chip: int, step: int) -> tuple[int, int]:
    """Members a chip reaches going one way, and 1 if half a block goes on to the antipode."""
    if ring.wraps:
        return (ring.size - 1) // 2, 1 - ring.size % 2
    member = torus.member(chip, ring)
    return (ring.size - 1 - member if step > 0 else member), 0


@cache
def half_mask(count: int, step: int) -> int:
    """The first halves of `count` units for one way round, the second for the other."""
    first = (4**count - 1) // 3
    return first if step > 0 else first << 1

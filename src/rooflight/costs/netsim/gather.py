"""The messages of an all-gather; its mirror image in time is the reduce-scatter.

Along one axis every chip sends its block both ways round the ring (the block for the antipode in
halves), or to both ends of the line. Over several axes a share of the array goes axis by axis,
the block growing on the way. Units: the two halves of each chip's shard, bit 2 * chip and the next.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations, permutations

from rooflight.costs.netsim.torus import Cargo, LinkSchedule, Torus
from rooflight.hardware.mesh import Ring


@dataclass(frozen=True, slots=True)
class Share:
    """A fraction of the array that visits the axes in one order."""

    order: tuple[Ring, ...]
    fraction: float


def one_share(rings: Sequence[Ring]) -> tuple[Share, ...]:
    """The whole array over one axis after another."""
    return (Share(tuple(rings), 1.0),)


def equal_shares(rings: Sequence[Ring]) -> tuple[Share, ...]:
    """One share starting on each axis, going round."""
    count = len(rings)
    return tuple(Share((*rings[i:], *rings[:i]), 1 / count) for i in range(count))


def gather_shares(rings: Sequence[Ring]) -> tuple[Share, ...]:
    """The shares of an all-gather that make its busiest axis least busy.

    A small linear program: an optimum has as many orders as axes that are equally busy, so trying
    every such pair of sets finds it. Orders that rotate come first and win ties.
    """
    turns = [s.order for s in equal_shares(rings)]
    orders = turns + [p for p in permutations(rings) if p not in turns]
    best, best_load = one_share(rings), math.inf
    for count in range(len(rings), 0, -1):
        for chosen in combinations(orders, count):
            for tight in combinations(rings, count):
                fractions = _balance([[_load(o, r) for o in chosen] for r in tight])
                load = max(_mixed(chosen, fractions, r) for r in rings) if fractions else math.inf
                if load < best_load * (1 - 1e-9):
                    best_load = load
                    best = tuple(map(Share, chosen, fractions))
    return tuple(s for s in best if s.fraction > 0)


def _load(order: tuple[Ring, ...], ring: Ring) -> float:
    """Seconds (per byte of shard) that gathering in this order keeps one axis busy."""
    before = math.prod(r.size for r in order[: order.index(ring)])
    return before * (ring.size - 1) / ring.bytes_per_s


def _mixed(orders: Sequence[tuple[Ring, ...]], fractions: Sequence[float], ring: Ring) -> float:
    return sum(f * _load(o, ring) for o, f in zip(orders, fractions, strict=True))


def _balance(loads: list[list[float]]) -> list[float]:
    """Fractions, none negative, summing to 1, that load every row alike; empty if there are none.

    Solves loads @ x = 1 by elimination; scaling x to sum 1 keeps the rows alike.
    """
    size = len(loads)
    rows = [[value / max(row) for value in row] + [1 / max(row)] for row in loads]
    for i in range(size):
        pivot = max(range(i, size), key=lambda r: abs(rows[r][i]))
        rows[i], rows[pivot] = rows[pivot], rows[i]
        if abs(rows[i][i]) < 1e-12:
            return []
        rows[i] = [value / rows[i][i] for value in rows[i]]
        for r in range(size):
            if r != i:
                rows[r] = [a - rows[r][i] * b for a, b in zip(rows[r], rows[i], strict=True)]
    solution = [row[-1] for row in rows]
    if min(solution) < 0 or sum(solution) <= 0:
        return []
    return [x / sum(solution) for x in solution]


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

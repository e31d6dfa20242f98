"""The five collectives: build schedules, run them, keep the fastest, check what it delivered.

Where a schedule has a choice (how many pieces, which order of axes) a few are tried: large whole
messages are best when latency binds, many small pieces when bandwidth does.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from rooflight.netsim.check import Holdings, check_copies, check_moves, check_sums
from rooflight.netsim.engine import Flight, end_of, mirror, run
from rooflight.netsim.exchange import exchange_schedule
from rooflight.netsim.gather import gather_schedule, own_units
from rooflight.netsim.schedule import Schedule
from rooflight.netsim.shares import Share, equal_shares, gather_shares, one_share
from rooflight.netsim.shift import next_member, shift_schedule
from rooflight.netsim.torus import Torus
from rooflight.specs.mesh import Ring

_PIECES = (1, 4, 16, 64, 256)
_MAX_MESSAGES = 120_000
_ENOUGH = 0.99  # what 4x finer pieces gained is 3x what is left to gain

Rings = tuple[Ring, ...]


def all_gather(torus: Torus, nbytes: float, rings: Rings) -> list[Flight]:
    """Every chip ends with the shards of its whole group."""
    groups = groups_of(torus, rings)
    shard = nbytes / len(groups[0])
    flights = run(gather_schedule(torus, shard, one_share(rings), pieces=1))
    if len(rings) > 1:
        shares = gather_shares(rings)
        finer = (gather_schedule(torus, shard, shares, pieces=p) for p in _PIECES)
        flights = min(flights, _fastest(finer), key=end_of)
    check_copies(flights, *_shards(groups, flights))
    return flights


def reduce_scatter(torus: Torus, nbytes: float, rings: Rings) -> list[Flight]:
    """The all-gather backwards in time: where a block fanned out, partial sums come together."""
    flights = mirror(all_gather(torus, nbytes, rings))
    owned, whole = _shards(groups_of(torus, rings), flights)
    check_sums(flights, whole, owned)
    return flights


def all_reduce(torus: Torus, nbytes: float, rings: Rings) -> list[Flight]:
    """A reduce-scatter, then an all-gather of the sums."""
    first = reduce_scatter(torus, nbytes, rings)
    middle = end_of(first)
    return first + [
        replace(f, start=f.start + middle, sent=f.sent + middle, end=f.end + middle)
        for f in all_gather(torus, nbytes, rings)
    ]


def all_to_all(torus: Torus, nbytes: float, rings: Rings) -> list[Flight]:
    """Every chip ends with the chunk each of its group had for it."""
    groups = groups_of(torus, rings)
    chunk = nbytes / len(groups[0]) ** 2

    def build(shares: Sequence[Share], pieces: int, *, merged: bool) -> Schedule:
        return exchange_schedule(torus, chunk, shares, members=groups, pieces=pieces, merged=merged)

    turns = equal_shares(rings)
    runs = [run(build(one_share(rings), 1, merged=True))]
    runs.append(_fastest(build(turns, p, merged=True) for p in _PIECES[:2]))
    if not all(r.wraps for r in rings):
        runs.append(_fastest(build(turns, p, merged=False) for p in _PIECES))
    flights = min(runs, key=end_of)
    check_moves(flights, *_chunks(groups, flights))
    return flights


def permute(torus: Torus, nbytes: float, rings: Rings) -> list[Flight]:
    """Every chip ends with the bytes of the chip before it in its group."""
    targets = {chip: next_member(torus, rings, chip) for chip in range(torus.num_chips)}
    flights = run(shift_schedule(torus, nbytes, rings))
    check_moves(flights, *streams(flights, targets))
    return flights


COLLECTIVES: dict[str, Callable[[Torus, float, Rings], list[Flight]]] = {
    "all_gather": all_gather,
    "reduce_scatter": reduce_scatter,
    "all_reduce": all_reduce,
    "all_to_all": all_to_all,
    "permute": permute,
}


def _fastest(schedules: Iterable[Schedule]) -> list[Flight]:
    """Runs schedules, each cut finer than the last, until cutting finer no longer pays."""
    best: list[Flight] = []
    for schedule in schedules:
        if best and len(schedule.messages) > _MAX_MESSAGES:
            break
        flights = run(schedule)
        gain = end_of(flights) / end_of(best) if best else 0.0
        best = flights if gain < 1 else best
        if gain > _ENOUGH:
            break
    return best


def groups_of(torus: Torus, rings: Rings) -> list[list[int]]:
    """The members of each chip's own group, in order."""
    groups: list[list[int]] = []
    for chip in range(torus.num_chips):
        members = [chip]
        for ring in rings:
            pitch = ring.stride * torus.pitch(torus.dim_of(ring))
            first = torus.member(chip, ring)
            members = [m + (i - first) * pitch for m in members for i in range(ring.size)]
        groups.append(members)
    return groups


def _shards(
    groups: Sequence[Sequence[int]], flights: Sequence[Flight]
) -> tuple[Holdings, Holdings]:
    """A chip's own shard, and those of its whole group, for every piece."""
    pieces = {f.message.piece for f in flights}
    whole = [sum(own_units(m) for m in members) for members in groups]
    return (
        {(p, chip): own_units(chip) for p in pieces for chip in range(len(groups))},
        {(p, chip): units for p in pieces for chip, units in enumerate(whole)},
    )


def _chunks(
    groups: Sequence[Sequence[int]], flights: Sequence[Flight]
) -> tuple[Holdings, Holdings]:
    """The chunks a chip has for each of its group, and the ones they have for it."""
    pieces, chips = {f.message.piece for f in flights}, len(groups)
    before = [sum(3 << 2 * (chip * chips + m) for m in groups[chip]) for chip in range(chips)]
    after = [sum(3 << 2 * (m * chips + chip) for m in groups[chip]) for chip in range(chips)]
    return (
        {(p, chip): units for p in pieces for chip, units in enumerate(before)},
        {(p, chip): units for p in pieces for chip, units in enumerate(after)},
    )


def streams(flights: Sequence[Flight], targets: dict[int, int]) -> tuple[Holdings, Holdings]:
    """Every packet at its origin, and at its target."""
    packets = {(f.message.piece, f.message.units) for f in flights}
    start: dict[tuple[int, int], int] = {}
    finish: dict[tuple[int, int], int] = {}
    for piece, units in packets:
        origin = units.bit_length() - 1
        start[piece, origin] = units
        finish[piece, targets[origin]] = units
    return start, finish

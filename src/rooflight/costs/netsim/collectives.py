"""The five collectives: build schedules, run them, keep the fastest, check what it delivered.

Where a schedule has a choice (how many pieces, which order of axes) a few are tried: large whole
messages are best when latency binds, many small pieces when bandwidth does.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache, partial

from rooflight.costs.netsim.check import Holdings, check_copies, check_moves, check_sums
from rooflight.costs.netsim.engine import Flight, busiest, end_of, later, mirror, run
from rooflight.costs.netsim.exchange import exchange_schedule, next_member, shift_schedule
from rooflight.costs.netsim.gather import (
    equal_shares,
    gather_schedule,
    gather_shares,
    one_share,
    own_units,
)
from rooflight.costs.netsim.torus import LinkSchedule, Torus
from rooflight.hardware.mesh import Ring

_CUTS = ((1, False), (8, True), (32, True), (128, True), (128, False), (512, False))
MAX_MESSAGES = 1_000_000  # keeps the worst run under half a minute; most need a few thousand
_ENOUGH = 1.004  # of what the busiest link or the longest way takes by itself

Rings = tuple[Ring, ...]


@lru_cache(maxsize=1)  # the three collectives made of a gather are often run one after another
def all_gather(
    torus: Torus, nbytes: float, rings: Rings, most: int = MAX_MESSAGES
) -> Sequence[Flight]:
    """Every chip ends with the shards of its whole group."""
    groups = groups_of(torus, rings)
    shard = nbytes / len(groups[0])
    flights = run(gather_schedule(torus, shard, one_share(rings), pieces=1, growing=False))
    if len(rings) > 1:
        shares = gather_shares(rings)

        def build(pieces: int, growing: bool) -> LinkSchedule:
            return gather_schedule(torus, shard, shares, pieces=pieces, growing=growing)

        flights = min(
            flights, _fastest(build, _CUTS, _flight_ticks(torus, rings), most), key=end_of
        )
    check_copies(flights, *held_shards(groups, flights))
    return flights


def reduce_scatter(
    torus: Torus, nbytes: float, rings: Rings, most: int = MAX_MESSAGES
) -> Sequence[Flight]:
    """The all-gather backwards in time: where a block fanned out, partial sums come together."""
    flights = mirror(all_gather(torus, nbytes, rings, most))
    owned, whole = held_shards(groups_of(torus, rings), flights)
    check_sums(flights, whole, owned)
    return flights


def all_reduce(
    torus: Torus, nbytes: float, rings: Rings, most: int = MAX_MESSAGES
) -> Sequence[Flight]:
    """A reduce-scatter, then an all-gather of the sums, which is its mirror image."""
    first = reduce_scatter(torus, nbytes, rings, most)
    return [*first, *later(mirror(first), end_of(first))]


def all_to_all(
    torus: Torus, nbytes: float, rings: Rings, most: int = MAX_MESSAGES
) -> Sequence[Flight]:
    """Every chip ends with the chunk each of its group had for it."""
    groups = groups_of(torus, rings)
    chunk = nbytes / len(groups[0]) ** 2

    build = partial(exchange_schedule, torus, chunk, members=groups)
    turns = equal_shares(rings)
    flight = _flight_ticks(torus, rings)
    runs = [run(build(one_share(rings), pieces=1, merged=True))]
    runs.append(_fastest(lambda p, _: build(turns, pieces=p, merged=True), _CUTS[:2], flight, most))
    if not all(r.wraps for r in rings):
        runs.append(
            _fastest(lambda p, _: build(turns, pieces=p, merged=False), _CUTS, flight, most)
        )
    flights = min(runs, key=end_of)
    check_moves(flights, *held_chunks(groups, flights))
    return flights


def permute(
    torus: Torus, nbytes: float, rings: Rings, most: int = MAX_MESSAGES
) -> Sequence[Flight]:
    """Every chip ends with the bytes of the chip before it in its group; nothing is tried."""
    targets = {chip: next_member(torus, rings, chip) for chip in range(torus.num_chips)}
    flights = run(shift_schedule(torus, nbytes, rings))
    check_moves(flights, *streams(flights, targets))
    return flights


COLLECTIVES: dict[str, Callable[[Torus, float, Rings, int], Sequence[Flight]]] = {
    "all_gather": all_gather,
    "reduce_scatter": reduce_scatter,
    "all_reduce": all_reduce,
    "all_to_all": all_to_all,
    "permute": permute,
}


def _fastest(
    build: Callable[[int, bool], LinkSchedule],
    cuts: Sequence[tuple[int, bool]],
    flight_ticks: int,
    most: int,
) -> list[Flight]:
    """Cuts a schedule finer and finer until that no longer pays.

    It stops near the time no schedule can beat, after two cuts that gain under 0.5 %, and at `most`
    messages.
    """
    best = run(build(*cuts[0]))
    floor = max(flight_ticks, busiest(best)) * _ENOUGH
    num_messages, idle = len(best), 0
    for count, growing in cuts[1:]:
        if end_of(best) <= floor or idle == 2 or num_messages * count > most:
            break
        flights = run(build(count, growing))
        num_messages = len(flights) // count
        idle = idle + 1 if end_of(flights) > 0.995 * end_of(best) else 0
        best = min(best, flights, key=end_of)
    return best


def _flight_ticks(torus: Torus, rings: Rings) -> int:
    """The flight time to the farthest chip of a group."""
    return sum(r.hops * r.stride * torus.flight_ticks(torus.dim_of(r)) for r in rings)


def groups_of(torus: Torus, rings: Rings) -> list[list[int]]:
    """The members of each chip's own group, in order."""
    groups: list[list[int]] = []
    for chip in range(torus.num_chips):
        members = [chip]
        for ring in rings:
            pitch = ring.stride * torus.pitches[torus.dim_of(ring)]
            first = torus.member(chip, ring)
            members = [m + (i - first) * pitch for m in members for i in range(ring.size)]
        groups.append(members)
    return groups


def held_shards(
    groups: Sequence[Sequence[int]], flights: Sequence[Flight]
) -> tuple[Holdings, Holdings]:
    """A chip's own shard, and those of its whole group, for every piece."""
    pieces = {f.message.piece for f in flights}
    whole = [sum(own_units(m) for m in members) for members in groups]
    return (
        {(p, chip): own_units(chip) for p in pieces for chip in range(len(groups))},
        {(p, chip): units for p in pieces for chip, units in enumerate(whole)},
    )


def held_chunks(
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

"""One chip sends to another on a torus, hop by hop: the oracle of what a send is priced at."""

from collections.abc import Sequence

from rooflight.costs.netsim.check import check_moves
from rooflight.costs.netsim.collectives import streams
from rooflight.costs.netsim.engine import run
from rooflight.costs.netsim.exchange import Leg, stream
from rooflight.costs.netsim.network import CollectiveRun
from rooflight.costs.netsim.simulate import SimResult, result_of
from rooflight.costs.netsim.torus import LinkSchedule, Torus, torus_of
from rooflight.hardware.slice import Slice


def point_to_point_schedule(torus: Torus, nbytes: float, source: int, target: int) -> LinkSchedule:
    """One chip streams to another by shortest ways, a route from each port that starts one."""
    schedule = LinkSchedule(torus)
    ways = [_ways(torus, source, target, dim) for dim in range(len(torus.dims))]
    ways = [w for w in ways if w]
    routes: list[list[Leg]] = []
    for side in range(min(map(len, ways), default=0)):  # both sides if all are antipodes
        legs = [w[side] for w in ways]
        routes += [[*legs[i:], *legs[:i]] for i in range(len(legs))]
    if routes:
        stream(schedule, nbytes, source, routes, fair=True)
    return schedule


def _ways(torus: Torus, source: int, target: int, dim: int) -> list[Leg]:
    """The shortest ways along one dim: none, one, or both ways to an antipode."""
    by = torus.position(target, dim=dim) - torus.position(source, dim=dim)
    if by == 0:
        return []
    size, wraps = torus.dims[dim].size, torus.dims[dim].wraps
    steps = (by % size, by % size - size) if wraps else (by,)
    shortest = min(map(abs, steps))
    return [Leg(dim, 1 if s > 0 else -1, abs(s), abs(s)) for s in steps if abs(s) == shortest]


def simulate_send(
    nbytes: float, on: Slice, *, source: Sequence[int], target: Sequence[int]
) -> SimResult:
    """Simulates one chip sending to another by every shortest way that starts on its own port."""
    torus = torus_of(on)
    first, last = (
        sum(c * torus.pitches[dim] for dim, c in enumerate(chip)) for chip in (source, target)
    )
    flights = run(point_to_point_schedule(torus, nbytes, first, last))
    check_moves(flights, *streams(flights, {first: last}))
    return result_of("permute", nbytes, CollectiveRun(flights, torus.num_chips))

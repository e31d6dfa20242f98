"""Collectives on a ring whose links go one way, laid out message by message on simulated links.

Real tori have links both ways, so `netsim.simulate` does not offer this; the book asks for it to
show where the factors of two come from. In: an array's size and a ring. Out: load of one link.
"""

from collections import defaultdict

from rooflight.netsim.schedule import Cargo, Schedule
from rooflight.netsim.torus import torus_of
from rooflight.specs import Slice


def all_gather_on_one_way_ring(size: float, ring: Slice) -> float:
    """What crosses the busiest link when every shard goes all the way round."""
    chips = ring.num_chips
    schedule = Schedule(torus_of(ring))
    for chip in range(chips):
        _send(schedule, chip, size / chips, links=chips - 1)
    return _busiest_link(schedule)


def all_to_all_on_one_way_ring(size: float, ring: Slice) -> float:
    """What crosses the busiest link when every chip has a chunk for every other."""
    chips = ring.num_chips
    schedule = Schedule(torus_of(ring))
    for chip in range(chips):
        for distance in range(1, chips):
            _send(schedule, chip, size / chips**2, links=distance)
    return _busiest_link(schedule)


def _send(schedule: Schedule, source: int, size: float, *, links: int) -> None:
    cargo = Cargo(size, piece=0, units=1, rank=0)
    schedule.send(cargo, source=source, dim=0, step=1, links=links, after=())


def _busiest_link(schedule: Schedule) -> float:
    loads: defaultdict[int, float] = defaultdict(float)
    for message in schedule.messages:
        loads[message.link] += message.nbytes
    return max(loads.values())

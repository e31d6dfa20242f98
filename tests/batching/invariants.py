"""What must hold after every event, whatever came before."""

from collections import Counter

from rooflight.batching.disaggregated import DisaggregatedScheduler
from rooflight.batching.scheduler import Scheduler


def check(scheduler: Scheduler) -> None:
    """Every block is free or owned, by exactly those who list it; no row is lost."""
    tables = scheduler.tables()
    held = [*tables.values()]
    if isinstance(scheduler, DisaggregatedScheduler):
        held += [lease.blocks for lease in scheduler.leases.values()]
        for hold in (*scheduler.leases.values(), *scheduler.landing.values()):
            assert scheduler.is_current(hold)
        for hold in scheduler.landing.values():
            assert tables[hold.row] == hold.blocks
    owners = Counter(block for blocks in held for block in blocks)
    pool = scheduler.room.pool
    assert dict(owners) == pool.owners()
    assert len(owners) + pool.num_free == pool.num_blocks
    assert len(tables) == scheduler.num_running <= scheduler.limits.max_rows
    assert scheduler.num_requests == scheduler.num_waiting + scheduler.num_running
    for blocks in tables.values():
        assert len(set(blocks)) == len(blocks)

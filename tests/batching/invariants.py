"""What must hold after every event, whatever came before."""

from collections import Counter

from rooflight.batching import Scheduler


def check(scheduler: Scheduler) -> None:
    """Every block is free or owned, by exactly those who list it; no row is lost."""
    tables = scheduler.tables()
    owners = Counter(block for blocks in tables.values() for block in blocks)
    pool = scheduler.room.pool
    assert dict(owners) == pool.owners()
    assert len(owners) + pool.num_free == pool.num_blocks
    assert len(tables) == scheduler.num_running <= scheduler.limits.max_rows
    assert scheduler.num_requests == scheduler.num_waiting + scheduler.num_running
    for blocks in tables.values():
        assert len(set(blocks)) == len(blocks)

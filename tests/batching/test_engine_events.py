"""What only an engine does to a scheduler: drafts, chunks of whole tiles, a lost cache."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rooflight.batching.request import Limits, Request
from rooflight.batching.scheduler import Scheduler
from rooflight.batching.step_batch import PrefillChunk
from rooflight.errors import UsageError

from .invariants import check

LENGTHS = (13, 1, 30, 7, 22)


@settings(max_examples=60)
@given(st.integers(0, 2**32), st.sampled_from([14, 20, 60]))
def test_drafts_make_every_token_once_and_lose_no_block(seed: int, num_blocks: int) -> None:
    draw = random.Random(seed)
    scheduler = Scheduler(Limits(3, 10, num_blocks, 4, 50))
    made = dict.fromkeys(range(len(LENGTHS)), 0)
    ids: dict[int, int] = {}
    for id, length in enumerate(LENGTHS):
        scheduler.add(Request(id, draw.randint(1, 20), length))
    while scheduler.num_requests:
        batch = scheduler.schedule()
        ids |= {chunk.row: chunk.id for chunk in batch.chunks}
        wanted: dict[int, int] = {}
        for row in batch.decode_rows:
            left = LENGTHS[ids[row]] - made[ids[row]] - 1
            scheduler.reserve(row, min(3, left))
            wanted[ids[row]] = min(3, left, scheduler.room_of(row))
            made[ids[row]] += 1
        for id in scheduler.commit().prefilled:
            made[id] += 1
        check(scheduler)
        for id, drafts in wanted.items():
            accepted = draw.randint(0, drafts)
            made[id] += accepted
            scheduler.accept(id, accepted)
            check(scheduler)
    assert made == dict(enumerate(LENGTHS))
    assert scheduler.room.pool.num_free == num_blocks


def test_a_prompt_is_cut_at_whole_tiles_and_ends_where_it_ends() -> None:
    scheduler = Scheduler(Limits(2, 11, 50, 4, 10, chunk_tokens=4))
    scheduler.add(Request(0, 18, 1))
    scheduler.add(Request(1, 9, 1))
    sizes: list[list[int]] = []
    while scheduler.num_requests:
        sizes.append([chunk.tokens for chunk in scheduler.schedule().chunks])
        scheduler.commit()
    assert sizes == [[8], [10], [9]]  # a token of the budget is left, which is no tile


def test_a_budget_in_which_no_tile_fits_beside_the_rows_is_refused() -> None:
    with pytest.raises(UsageError, match="no chunk of 8 tokens"):
        Limits(4, 10, 50, 4, 10, chunk_tokens=8)


def test_a_lost_cache_drops_who_runs_and_keeps_who_waits() -> None:
    scheduler = Scheduler(Limits(2, 100, 50, 4, 10))
    for id in range(4):
        scheduler.add(Request(id, 8, 5, keys=[(id, 0), (id, 1)]))
    scheduler.schedule()
    scheduler.commit()
    scheduler.schedule()
    scheduler.abort()
    check(scheduler)
    assert [id in scheduler for id in range(4)] == [False, False, True, True]
    assert (scheduler.num_running, scheduler.num_waiting) == (0, 2)
    scheduler.add(Request(5, 9, 1, keys=[(0, 0), (0, 1)]))
    started = [chunk.start for _ in range(12) for chunk in _step(scheduler)]
    assert started == [0, 0, 0]  # nothing of the prompt was found
    assert scheduler.num_requests == 0


def _step(scheduler: Scheduler) -> list[PrefillChunk]:
    chunks = list(scheduler.schedule().chunks)
    scheduler.commit()
    return chunks

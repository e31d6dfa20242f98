"""The scheduler: budget, priorities, preemption, bounds, cancellation; nothing is ever lost."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rooflight.batching.request import Admission, Limits, Policy, Request
from rooflight.batching.scheduler import Scheduler
from rooflight.errors import ModelError, UsageError

from .invariants import check


def make(**changes: int | Policy | None) -> Scheduler:
    sizes: dict[str, int | Policy | None] = {
        "max_rows": 4,
        "max_step_tokens": 16,
        "num_blocks": 32,
        "block_tokens": 4,
        "max_waiting": 100,
    }
    return Scheduler(Limits(**(sizes | changes)))  # type: ignore[arg-type]


def test_decode_comes_first_and_prompts_share_what_is_left_of_the_budget() -> None:
    scheduler = make()
    scheduler.add(Request(0, 10, 5))
    scheduler.schedule()
    scheduler.commit()
    scheduler.add(Request(1, 40, 5))
    scheduler.add(Request(2, 3, 5))
    batch = scheduler.schedule()
    assert len(batch.decode_rows) == 1 and batch.kv_tokens == 11
    assert [(c.id, c.start, c.tokens, c.is_last) for c in batch.chunks] == [(1, 0, 15, False)]
    scheduler.commit()
    starts = [scheduler.schedule().chunks[0].start]
    scheduler.commit()
    batch = scheduler.schedule()
    assert starts == [15]
    assert [(c.id, c.start, c.tokens, c.is_last) for c in batch.chunks] == [
        (1, 30, 10, True),
        (2, 0, 3, True),
    ]


def test_whole_prompts_go_alone_when_interleaved() -> None:
    scheduler = make(policy=Policy.INTERLEAVED)
    scheduler.add(Request(0, 10, 5))
    scheduler.schedule()
    scheduler.commit()
    scheduler.add(Request(1, 40, 5))
    batch = scheduler.schedule()
    assert not batch.decode_rows and batch.chunks[0].tokens == 40


def test_a_static_batch_ends_before_the_next_begins() -> None:
    scheduler = make(policy=Policy.STATIC)
    scheduler.add(Request(0, 4, 3))
    scheduler.schedule()
    scheduler.commit()
    scheduler.schedule()  # nothing waits: the batch is closed
    scheduler.commit()
    scheduler.add(Request(1, 4, 3))
    assert not scheduler.schedule().chunks
    assert scheduler.commit().finished == [0]
    assert scheduler.schedule().chunks[0].id == 1


def test_a_smaller_priority_number_goes_first_then_the_older() -> None:
    scheduler = make(max_rows=1)
    for id, priority in enumerate((1, 1, 0)):
        scheduler.add(Request(id, 4, 1, priority=priority))
    order: list[int] = []
    while scheduler.num_requests:
        scheduler.schedule()
        order += scheduler.commit().finished
    assert order == [2, 0, 1]


def test_the_least_important_row_makes_room_and_is_computed_again() -> None:
    scheduler = make(num_blocks=4, max_rows=2)
    scheduler.add(Request(0, 7, 9))
    scheduler.add(Request(1, 7, 9))
    made = {0: 0, 1: 0}
    preempted: list[int] = []
    while scheduler.num_requests:
        batch = scheduler.schedule()
        preempted += batch.preempted
        tokens = [c.id for c in batch.chunks if c.is_last]
        rows = {s.row: s.id for s in scheduler._sequences.values()}  # pyright: ignore[reportPrivateUsage]
        for id in [*tokens, *(rows[row] for row in batch.decode_rows)]:
            made[id] += 1
        scheduler.commit()
        check(scheduler)
    assert preempted == [1] and scheduler.num_preemptions == 1
    assert made == {0: 9, 1: 9}


def test_admission_is_bounded_in_requests_and_in_tokens() -> None:
    scheduler = make(max_waiting=2, max_waiting_tokens=20)
    assert scheduler.add(Request(0, 15, 1)) is Admission.ADMITTED
    assert scheduler.add(Request(1, 6, 1)) is Admission.QUEUE_FULL
    assert scheduler.add(Request(1, 5, 1)) is Admission.ADMITTED
    assert scheduler.add(Request(2, 1, 1)) is Admission.QUEUE_FULL
    assert scheduler.add(Request(3, 120, 10)) is Admission.TOO_LONG


def test_a_request_that_fills_the_pool_runs_alone() -> None:
    scheduler = make(num_blocks=200, max_rows=2)
    scheduler.add(Request(0, 700, 101))
    done: list[int] = []
    while scheduler.num_requests:
        scheduler.schedule()
        done += scheduler.commit().finished
    assert done == [0] and scheduler.num_preemptions == 0


def test_a_row_cancelled_in_flight_keeps_its_blocks_until_the_commit() -> None:
    scheduler = make()
    scheduler.add(Request(0, 10, 5))
    scheduler.add(Request(1, 2, 5))
    scheduler.schedule()
    assert scheduler.cancel(0) and scheduler.cancel(0)
    assert len(scheduler.tables()) == 2
    assert scheduler.commit().finished == []
    assert len(scheduler.tables()) == 1
    assert not scheduler.cancel(0)
    check(scheduler)


def test_a_row_may_stop_early() -> None:
    scheduler = make()
    scheduler.add(Request(0, 3, 50))
    scheduler.schedule()
    scheduler.commit()
    scheduler.schedule()
    assert scheduler.commit(stopped=[0]).finished == [0]
    assert scheduler.num_requests == 0 and scheduler.room.pool.num_free == 32


def test_misuse_is_named() -> None:
    scheduler = make()
    scheduler.add(Request(0, 3, 5))
    with pytest.raises(UsageError, match="already here"):
        scheduler.add(Request(0, 3, 5))
    with pytest.raises(UsageError, match="only token"):
        scheduler.insert(Request(1, 3, 1))
    with pytest.raises(ModelError, match="without a scheduled step"):
        scheduler.commit()
    scheduler.schedule()
    with pytest.raises(ModelError, match="two steps"):
        scheduler.schedule()
    with pytest.raises(ModelError, match="to the horizon"):
        scheduler.advance(1)
    with pytest.raises(UsageError, match="above the budget"):
        make(max_rows=17)
    with pytest.raises(UsageError, match="below 1"):
        make(num_blocks=0)


def test_inserted_sequences_decode_in_their_first_step() -> None:
    scheduler = make()
    scheduler.insert(Request(0, 8, 3))
    batch = scheduler.schedule()
    assert batch.decode_rows and not batch.chunks and batch.kv_tokens == 9
    scheduler.commit()
    scheduler.schedule()
    assert scheduler.commit().finished == [0]


_sizes = st.fixed_dictionaries(
    {
        "max_rows": st.integers(1, 5),
        "max_step_tokens": st.integers(5, 20),
        "num_blocks": st.integers(4, 130),
        "block_tokens": st.sampled_from([1, 2, 4]),
        "max_waiting": st.integers(1, 20),
        "policy": st.sampled_from(list(Policy)),
    }
)


@settings(max_examples=300)
@given(_sizes, st.integers(0, 2**32))
def test_tokens_and_blocks_are_conserved_at_every_event(
    sizes: dict[str, int | Policy | None], seed: int
) -> None:
    scheduler, draw = make(**sizes), random.Random(seed)
    wanted: dict[int, int] = {}
    for id in range(40):
        _random_event(scheduler, draw, id, wanted)
        check(scheduler)
        _random_step(scheduler, draw, wanted)
    while scheduler.num_requests:
        _random_step(scheduler, draw, wanted)
    assert all(left == 0 for left in wanted.values())
    assert scheduler.room.pool.num_free == scheduler.room.pool.num_blocks


def _random_event(
    scheduler: Scheduler, draw: random.Random, id: int, wanted: dict[int, int]
) -> None:
    if draw.random() < 0.8:
        prompt, new = draw.randint(1, 12), draw.randint(2, 9)
        keys = [(draw.choice("ab"), at) for at in range(draw.randint(0, 3))]
        request = Request(id, prompt, new, keys, draw.randint(0, 1))
        is_insert = draw.random() < 0.2
        admission = (scheduler.insert if is_insert else scheduler.add)(request)
        if admission is Admission.ADMITTED:
            wanted[id] = new - is_insert
    elif wanted:
        gone = draw.choice(list(wanted))
        assert scheduler.cancel(gone) == (wanted[gone] > 0)
        wanted[gone] = 0


def _random_step(scheduler: Scheduler, draw: random.Random, wanted: dict[int, int]) -> None:
    """A step, or several at once; every token is counted."""
    rows = _ids_by_row(scheduler)
    steps = scheduler.horizon()
    if steps and draw.random() < 0.5:
        steps = draw.randint(1, steps)
        decoded = [rows[row] for row in scheduler._decoding.rows]  # pyright: ignore[reportPrivateUsage]
        outcome = scheduler.advance(steps)
        _count(wanted, decoded, steps)
    else:
        batch = scheduler.schedule()
        assert len(batch.decode_rows) + sum(c.tokens for c in batch.chunks) <= max(
            scheduler.limits.max_step_tokens, *(c.tokens for c in batch.chunks), 0
        )
        check(scheduler)
        rows = _ids_by_row(scheduler)
        decoded = [rows[row] for row in batch.decode_rows]
        outcome = scheduler.commit()
        _count(wanted, [*decoded, *outcome.prefilled], 1)
    assert all(wanted[id] == 0 for id in outcome.finished)
    check(scheduler)


def _ids_by_row(scheduler: Scheduler) -> dict[int, int]:
    return {s.row: s.id for s in scheduler._sequences.values()}  # pyright: ignore[reportPrivateUsage]


def _count(wanted: dict[int, int], ids: list[int], steps: int) -> None:
    for id in ids:
        wanted[id] -= steps
        assert wanted[id] >= 0

"""Many steps at once are as many single steps, down to the numbers of the blocks."""

import random
from copy import deepcopy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rooflight.batching.request import Limits, Policy, Request
from rooflight.batching.scheduler import Scheduler


def state(scheduler: Scheduler) -> tuple[object, ...]:
    """All that can be asked of a scheduler."""
    return (
        scheduler.tables(),
        scheduler.num_waiting,
        scheduler.num_decoding,
        scheduler.kv_tokens,
        scheduler.num_preemptions,
        list(scheduler.room.pool._free),  # pyright: ignore[reportPrivateUsage]
        scheduler.horizon(),
    )


@settings(max_examples=200)
@given(st.integers(0, 2**32), st.sampled_from(list(Policy)), st.sampled_from([6, 14, 200]))
def test_advance_equals_single_steps(seed: int, policy: Policy, num_blocks: int) -> None:
    draw = random.Random(seed)
    limits = Limits(4, 9, num_blocks, draw.choice([1, 2, 4]), 50, policy=policy)
    fast = Scheduler(limits)
    for id in range(12):
        prompt, new = draw.randint(1, 8), draw.randint(1, 30)
        fast.add(Request(id, prompt, new, list(range(draw.randint(0, 2)))))
    while fast.num_requests:
        steps = fast.horizon()
        if not steps:
            fast.schedule()
            fast.commit()
            continue
        steps = draw.randint(1, steps)
        slow = deepcopy(fast)
        outcome, finished = fast.advance(steps), list[int]()
        for _ in range(steps):
            batch = slow.schedule()
            assert batch.decode_rows and not batch.chunks and not batch.preempted
            finished += slow.commit().finished
        assert finished == list(outcome.finished)
        assert state(slow) == state(fast)


def test_the_horizon_reaches_to_the_first_end() -> None:
    scheduler = Scheduler(Limits(4, 100, 1000, 4, 50))
    for id, new in enumerate((100, 30, 60)):
        scheduler.add(Request(id, 10, new))
    assert scheduler.horizon() == 0  # they wait to be prefilled
    scheduler.schedule()
    scheduler.commit()
    assert scheduler.horizon() == 29
    assert scheduler.advance(29).finished == [1]


@pytest.mark.parametrize("waiting", [0, 5])
def test_a_queue_that_cannot_move_does_not_stop_the_clock(waiting: int) -> None:
    scheduler = Scheduler(Limits(2, 100, 1000, 4, 50))
    for id in range(2 + waiting):
        scheduler.add(Request(id, 10, 50))
    for _ in range(2):
        scheduler.schedule()
        scheduler.commit()
    assert scheduler.horizon() == 48
    scheduler.add(Request(99, 1, 1, priority=-1))  # the new head has not been tried
    assert scheduler.horizon() == 0

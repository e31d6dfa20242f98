"""What the scheduler itself costs: time of a step, and memory over many."""

import tracemalloc
from itertools import count

import pytest

from rooflight.batching.request import Limits, Request
from rooflight.batching.scheduler import Scheduler

from ..reference_loop import standard_s

ROWS, WAITING = 256, 10_000


def _request(id: int) -> Request:
    return Request(id, 200 + id * 31 % 100, 1 + id * 7919 % 400)


def test_a_step_with_256_running_and_10000_waiting_takes_at_most_a_millisecond() -> None:
    scheduler = Scheduler(Limits(ROWS, 2048, 20_000, 16, 2 * WAITING))
    for id in range(ROWS + WAITING):
        scheduler.add(_request(id))
    ids, steps = count(ROWS + WAITING), 500

    def serve() -> None:
        for _ in range(steps):
            scheduler.schedule()
            for _ in scheduler.commit().finished:
                scheduler.add(_request(next(ids)))

    seconds = standard_s(serve)
    assert scheduler.num_waiting > 0.9 * WAITING and scheduler.num_decoding > 0.9 * ROWS
    assert seconds / steps <= 1e-3


def _serve(scheduler: Scheduler, id: int, steps: int) -> int:
    for _ in range(steps):
        while scheduler.num_requests < 12:
            scheduler.add(Request(id, 1 + id % 50, 1 + id % 37, [("p", id % 9)], id % 3))
            id += 1
        if id % 11 == 0:
            scheduler.cancel(id - 5)
        scheduler.schedule()
        scheduler.commit()
    return id


@pytest.mark.parametrize(
    ("steps", "warm_up"),
    [(30_000, 10_000), pytest.param(1_000_000, 50_000, marks=pytest.mark.full)],
)
def test_memory_is_flat_over_many_steps(steps: int, warm_up: int) -> None:
    scheduler = Scheduler(Limits(8, 64, 100, 4, 100))
    id = _serve(scheduler, 0, warm_up)
    tracemalloc.start()
    id = _serve(scheduler, id, 2000)
    before = tracemalloc.get_traced_memory()[0]
    _serve(scheduler, id, steps)
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < 64 * 1024

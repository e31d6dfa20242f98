"""Prompts of one replica, texts of another: leases, landings, losses, and not one block lost."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from rooflight.batching.disaggregated import DisaggregatedScheduler
from rooflight.batching.request import Limits, Request

from .invariants import check

LIMITS = Limits(3, 10, 20, 4, 50)


def request(id: int, prompt: int, length: int) -> Request:
    return Request(id, prompt, length, keys=[(id % 3, at) for at in range(prompt // 4)])


class Traffic:
    """Requests of every kind at random, and how many tokens each has."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.scheduler = DisaggregatedScheduler(LIMITS)
        self.made: dict[int, int] = {}
        self.wanted: dict[int, int] = {}
        self.away: list[int] = []
        self.ids: dict[int, int] = {}  # of rows
        self.cancelled: set[int] = set()

    def come(self) -> None:
        id, prompt = len(self.made), self.draw.randint(1, 24)
        kind = self.draw.choice(("add", "prefill", "expect", "expect"))
        self.wanted[id] = 1 if kind == "prefill" else self.draw.randint(2, 16)
        self.made[id] = 0
        assert getattr(self.scheduler, kind)(request(id, prompt, self.wanted[id])) == "admitted"
        if kind == "expect":
            self.away.append(id)

    def news(self) -> None:
        """Something of what is elsewhere happens."""
        scheduler, draw = self.scheduler, self.draw
        if self.away and draw.random() < 0.5:
            id = self.away.pop(draw.randrange(len(self.away)))
            if draw.random() < 0.2:
                scheduler.lose(id)
            elif scheduler.offer(id):
                self.made[id] = 1
        elif scheduler.landing and draw.random() < 0.8:
            id = draw.choice(list(scheduler.landing))
            scheduler.land(id) if draw.random() < 0.7 else scheduler.lose(id)
        elif scheduler.leases:
            scheduler.free(draw.choice(list(scheduler.leases)))
        else:
            scheduler.lose(draw.randrange(len(self.made) + 1))  # perhaps in the queue, or nobody

    def cancel(self) -> None:
        id = self.draw.randrange(len(self.made))
        if self.scheduler.cancel(id):
            self.cancelled.add(id)

    def step(self) -> None:
        batch = self.scheduler.schedule()
        self.ids |= {chunk.row: chunk.id for chunk in batch.chunks}
        self.ids |= {hold.row: id for id, hold in self.scheduler.landing.items()}
        for row in batch.decode_rows:
            self.made[self.ids[row]] += 1
        for id in self.scheduler.commit().prefilled:
            self.made[id] += 1


@settings(max_examples=150)
@given(st.integers(0, 2**32))
def test_whatever_happens_elsewhere_every_token_is_made_once_and_no_block_is_lost(
    seed: int,
) -> None:
    traffic = Traffic(seed)
    scheduler, to_come = traffic.scheduler, 12
    while to_come or scheduler.num_requests or scheduler.leases:
        kind = traffic.draw.random()
        if to_come and kind < 0.2:
            to_come -= 1
            traffic.come()
        elif traffic.made and kind < 0.4:
            traffic.news()
        elif traffic.made and kind < 0.42:
            traffic.cancel()
        else:
            is_idle = scheduler.is_idle
            before = sum(traffic.made.values())
            traffic.step()
            assert not is_idle or before == sum(traffic.made.values())
        check(scheduler)
    for id, made in traffic.made.items():
        assert made == traffic.wanted[id] or id in traffic.cancelled
    assert scheduler.pool.num_free == LIMITS.num_blocks


def test_a_block_that_was_taken_again_is_not_mistaken_for_the_old_one() -> None:
    scheduler = DisaggregatedScheduler(LIMITS)
    scheduler.prefill(Request(0, 80, 1))
    while scheduler.num_requests:
        scheduler.schedule()
        scheduler.commit()
    lease = scheduler.leases[0]
    assert len(lease.blocks) == 20 and scheduler.is_current(lease)
    assert scheduler.pool.num_free == 0
    scheduler.free(0)
    assert scheduler.pool.num_free == 20
    scheduler.add(Request(1, 5, 2))
    scheduler.schedule()
    assert not scheduler.is_current(lease)


def test_a_lost_cache_ends_leases_and_landings_and_keeps_who_is_away() -> None:
    scheduler = DisaggregatedScheduler(LIMITS)
    scheduler.prefill(Request(0, 8, 1))
    for id in (1, 2):
        scheduler.expect(Request(id, 8, 5))
    assert scheduler.offer(1) and not scheduler.offer(1)
    for _ in range(2):
        scheduler.schedule()
        scheduler.commit()
    assert set(scheduler.leases) == {0} and set(scheduler.landing) == {1}
    scheduler.abort()
    check(scheduler)
    assert not scheduler.leases and not scheduler.landing
    assert 1 not in scheduler and 2 in scheduler
    assert scheduler.pool.num_free == LIMITS.num_blocks

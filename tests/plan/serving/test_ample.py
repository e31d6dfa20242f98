"""Whether `Ample` or the scheduler runs the steps shows in nothing but the time it takes."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rooflight.batching.ample import Ample
from rooflight.batching.request import Limits, Policy
from rooflight.plan.serving.simulate.arrivals import Arrival
from rooflight.plan.serving.simulate.clock import StepClock
from rooflight.plan.serving.simulate.replica import Replica, Ticket

from .test_simulate import RoofCost

Found = tuple[dict[int, tuple[float, float]], tuple[float, ...]]


def traffic(draw: random.Random) -> list[Arrival]:
    """Bursts and pauses, so that what suffices at one time does not at another."""
    time_s, found = 0.0, list[Arrival]()
    for _ in range(draw.randint(1, 60)):
        time_s += draw.choice([0.0, 0.01, 0.2, 3.0]) * draw.random()
        segments = (draw.randint(0, 1),) if draw.random() < 0.1 else ()
        lengths = draw.randint(1, 300), draw.randint(1, 80)
        arrival = Arrival(time_s, *lengths, segments, 16, draw.choice([0, 0, 0, 1, -1]))
        found.append(arrival if arrival.input_tokens > 16 else arrival._replace(segments=()))
    return found


def run(arrivals: list[Arrival], limits: Limits, *, uses_ample: bool, inserts: bool) -> Found:
    times: dict[int, tuple[float, float]] = {}

    def note(ticket: Ticket, end_s: float) -> None:
        times[ticket.id] = (ticket.first_s, end_s)

    replica = Replica(limits, StepClock(RoofCost()), note)
    if not uses_ample:
        replica._ample = Ample[Ticket](replace(limits, max_waiting_tokens=10**9))  # pyright: ignore
        replica.batch = replica._ample  # pyright: ignore
    for id, arrival in enumerate(arrivals):
        replica.run_until(arrival.time_s)
        ticket = Ticket(id, arrival)
        if inserts and arrival.output_tokens > 1:
            ticket.first_s = arrival.time_s
            replica.insert(ticket)
        elif not inserts:
            replica.add(ticket, output_tokens=arrival.output_tokens)
    replica.run_until(float("inf"))
    own, room = replica.scheduler, replica.scheduler.room
    totals = replica.steps, replica.decode_steps, replica.row_steps, replica.busy_s
    return times, (*totals, own.num_preemptions, room.cached_tokens)


@settings(max_examples=150)
@given(st.integers(0, 2**32), st.sampled_from([7, 30, 60, 4000]), st.booleans())
def test_what_fits_comes_out_as_the_scheduler_has_it(
    seed: int, num_blocks: int, inserts: bool
) -> None:
    """Priorities, chunks, shared prefixes, preemption: each request, and what the replica did."""
    draw = random.Random(seed)
    rows = draw.choice([2, 8, 64])
    limits = Limits(
        rows,
        rows + draw.choice([16, 200]),
        num_blocks,
        draw.choice([8, 16]),
        draw.choice([3, 1000]),
        chunk_tokens=draw.choice([1, 4]),
    )
    arrivals = traffic(draw)
    fast, slow = (run(arrivals, limits, uses_ample=own, inserts=inserts) for own in (True, False))
    assert fast[0].keys() == slow[0].keys()
    for id, times in fast[0].items():
        assert times == pytest.approx(slow[0][id], rel=1e-9, abs=1e-12)
    assert fast[1] == pytest.approx(slow[1], rel=1e-9)


@pytest.mark.parametrize("policy", list(Policy))
def test_only_what_it_knows_is_taken(policy: Policy) -> None:
    """Another policy, a bounded queue, a row or a block too few: all that is for the scheduler."""
    limits = Limits(2, 64, 10, 16, 1, policy=policy)
    is_known = policy is Policy.CONTINUOUS
    assert Ample[str](limits).add("a", 100, 61, 0, False) is is_known  # 160 positions: all blocks
    assert not Ample[str](limits).add("a", 100, 62, 0, False)
    assert not Ample[str](replace(limits, max_waiting_tokens=10**6)).add("a", 1, 1, 0, False)
    if is_known:
        ample = Ample[str](limits)
        assert ample.add("a", 10, 10, 0, False)
        assert not ample.add("b", 10, 10, 0, False)  # the queue is full
        ample.step()
        assert ample.add("b", 10, 10, 0, False)
        ample.step()
        assert not ample.add("c", 1, 1, 0, False)  # no row
        assert [(w.job, w.cached) for w in ample.hand_over()] == [("a", 11), ("b", 10)]

"""The simulator equals a slow reference, request by request and to the last bit.

Times are multiples of 2**-10 s, so sums of them are exact in any order.
"""

import random
from dataclasses import dataclass

import pytest

from rooflight.batching.request import Admission, Limits, Policy
from rooflight.plan.serving.simulate.arrivals import Arrival
from rooflight.plan.serving.simulate.clock import StepClock
from rooflight.plan.serving.simulate.fleet import DisaggregatedFleet, Transfer
from rooflight.plan.serving.simulate.replica import Replica, Ticket, segment_keys
from rooflight.plan.serving.simulate.tally import Slo, Tally

from .reference_simulator import Job, Server

TICK = 2.0**-10


@dataclass(frozen=True)
class BinaryCost:
    """Straight in every size, with coefficients that floats hold exactly."""

    base: int
    row: int
    kv: int
    token: int
    pair: int

    def seconds(
        self, *, decode_rows: int, kv_tokens: int, prefill_tokens: int, prefill_kv_tokens: int
    ) -> float:
        decode = self.base + self.row * decode_rows + self.kv * kv_tokens
        return TICK * (decode + self.token * prefill_tokens + self.pair * prefill_kv_tokens)

    def late_s(self, *, prefill_tokens: int, prefill_kv_tokens: int) -> float:
        return 0.0


@dataclass(frozen=True)
class Case:
    limits: Limits
    cost: BinaryCost
    arrivals: list[Arrival]


def random_case(seed: int) -> Case:
    draw = random.Random(seed)
    size, rows = draw.choice([1, 2, 4]), draw.randint(1, 5)
    limits = Limits(
        max_rows=rows,
        max_step_tokens=rows + draw.randint(0, 12),
        num_blocks=draw.choice([8, 12, 20, 120]),
        block_tokens=size,
        max_waiting=draw.choice([2, 100]),
        policy=draw.choice(list(Policy)),
    )
    cost = BinaryCost(*(draw.choice(c) for c in ([1, 40], [0, 3], [0, 1], [0, 2], [0, 1])))
    time, arrivals = 0, list[Arrival]()
    for _ in range(draw.randint(1, 25)):
        time += draw.choice([0, 1, 30, 400])
        prompt, shared = draw.randint(1, 14), draw.randint(0, 3)
        segments = tuple(draw.choice([0, 7]) * 10 + i for i in range(shared))
        segments = segments[: prompt // size]
        arrivals.append(
            Arrival(
                time * TICK, prompt, draw.randint(1, 12), segments, size, draw.choice([0, 0, 1])
            )
        )
    return Case(limits, cost, arrivals)


def server_of(case: Case) -> Server:
    limits = case.limits
    return Server(
        case.cost,
        rows=limits.max_rows,
        budget=limits.max_step_tokens,
        blocks=limits.num_blocks,
        size=limits.block_tokens,
        waiting=limits.max_waiting,
        policy=limits.policy,
    )


def job_of(case: Case, id: int) -> Job:
    arrival = case.arrivals[id]
    keys = [*segment_keys(arrival, case.limits.block_tokens)] if arrival.segments else []
    return Job(
        id,
        arrival.time_s,
        arrival.input_tokens,
        arrival.output_tokens,
        keys,
        arrival.priority,
    )


Times = dict[int, tuple[float | None, float | None]]


@pytest.mark.parametrize("block", range(8))
def test_two_hundred_random_traces_come_out_the_same(block: int) -> None:
    preemptions = hits = 0
    for seed in range(25 * block, 25 * block + 25):
        case = random_case(seed)
        times: Times = {}

        def note(ticket: Ticket, end_s: float, times: Times = times) -> None:
            times[ticket.id] = (ticket.first_s, end_s)

        replica = Replica(case.limits, StepClock(case.cost), note)
        server = server_of(case)
        for id, arrival in enumerate(case.arrivals):
            replica.run_until(arrival.time_s)
            server.run_until(arrival.time_s)
            ticket = Ticket(id, arrival)
            admission = replica.add(ticket, output_tokens=arrival.output_tokens)
            assert (admission is Admission.ADMITTED) == server.enter(job_of(case, id)), seed
        replica.run_until(float("inf"))
        server.run_until(float("inf"))
        assert times == {job.number: (job.first, job.end) for job in server.done}, seed
        assert replica.scheduler.num_preemptions == server.preemptions
        preemptions += server.preemptions
        hits += replica.scheduler.room.cached_tokens
    assert preemptions > 0 and hits > 0


@pytest.mark.parametrize("block", range(4))
def test_a_separated_pair_comes_out_the_same(block: int) -> None:
    for seed in range(1000 + 10 * block, 1010 + 10 * block):
        case = random_case(seed)
        transfer = Transfer(bytes_per_token=3 * TICK, bytes_per_s=1.0, latency_s=5 * TICK)
        tally = Recorder()
        fleet = DisaggregatedFleet(
            case.limits,
            StepClock(case.cost),
            tally,
            prefill_replicas=1,
            generate_replicas=1,
            transfer=transfer,
        )
        for id, arrival in enumerate(case.arrivals):
            fleet.arrive(Ticket(id, arrival))
        fleet.drain()
        assert tally.times == separated_reference(case, transfer), seed


class Recorder(Tally):
    """Keeps every request."""

    def __init__(self) -> None:
        super().__init__(Slo())
        self.times: Times = {}

    def finish(self, ticket: Ticket, end_s: float) -> None:
        self.times[ticket.id] = (ticket.first_s, end_s)


def separated_reference(case: Case, transfer: Transfer) -> Times:
    prefill, generate = server_of(case), server_of(case)
    generate.max_waiting = 10**9
    for id, arrival in enumerate(case.arrivals):
        prefill.run_until(arrival.time_s)
        job = job_of(case, id)
        if job.prompt + job.output - 1 <= case.limits.pool_tokens:
            job.output = 1
            prefill.enter(job)
    prefill.run_until(float("inf"))
    times: Times = {job.number: (job.first, job.end) for job in prefill.done}
    handed: list[tuple[float, Job]] = []
    for done in prefill.done:
        job = job_of(case, done.number)
        if job.output > 1:
            job.made, job.first, job.ready = 1, done.first, True
            assert done.end is not None
            handed.append((done.end + transfer.seconds(job.prompt), job))
    for time, job in sorted(handed, key=lambda pair: (pair[0], pair[1].number)):
        generate.run_until(time)
        assert generate.enter(job)
    generate.run_until(float("inf"))
    return times | {job.number: (job.first, job.end) for job in generate.done}

"""Queues against formulas, and a replica against simpy: processes and events, none of our code."""

from collections import deque
from collections.abc import Generator
from random import Random

import pytest
import simpy

from rooflight.batching.request import Limits
from rooflight.plan.serving.simulate.arrivals import Arrival
from rooflight.plan.serving.simulate.replica import Ticket
from rooflight.plan.serving.simulate.run import simulate
from rooflight.plan.serving.simulate.tally import Tally

Times = dict[int, tuple[float, float]]  # of a request: its first token and its last
BUDGET = 96  # tokens of a step


class SlopeCost:
    """Steps with a fixed part, a part for each token and one for each cached position."""

    def seconds(
        self, *, decode_rows: int, kv_tokens: int, prefill_tokens: int, prefill_kv_tokens: int
    ) -> float:
        tokens = decode_rows + prefill_tokens
        return 5e-3 + 1e-4 * tokens + 2e-7 * kv_tokens + 1e-7 * prefill_kv_tokens

    def late_s(self, *, prefill_tokens: int, prefill_kv_tokens: int) -> float:
        return 0.0


class Job:
    def __init__(self, number: int, arrival: Arrival) -> None:
        self.number = number
        self.left = arrival.input_tokens  # of the prompt
        self.done = 0  # positions in the cache
        self.to_make = arrival.output_tokens


class SimpyReplica:
    """One process that sends, one that makes steps; rows are many, blocks without end."""

    def __init__(self, arrivals: list[Arrival], rows: int) -> None:
        self.env = simpy.Environment()
        self.rows = rows
        self.waiting = deque[Job]()
        self.running: list[Job] = []
        self.first: dict[int, float] = {}
        self.last: dict[int, float] = {}
        self.came = self.env.event()
        self.env.process(self.send(arrivals))
        self.env.process(self.serve())
        self.env.run()

    def send(self, arrivals: list[Arrival]) -> Generator[simpy.Event, None, None]:
        for number, arrival in enumerate(arrivals):
            yield self.env.timeout(arrival.time_s - self.env.now)
            self.waiting.append(Job(number, arrival))
            if not self.came.triggered:
                self.came.succeed()

    def serve(self) -> Generator[simpy.Event, None, None]:
        while True:
            if not self.waiting and not self.running:
                self.came = self.env.event()
                yield self.came
            yield from self.step()

    def step(self) -> Generator[simpy.Event, None, None]:
        decoding = [job for job in self.running if not job.left]
        budget, chunks = BUDGET - len(decoding), list[tuple[Job, int]]()
        begun = [job for job in self.running if job.left]
        while budget and (begun or (self.waiting and len(self.running) < self.rows)):
            job = begun.pop() if begun else self.waiting.popleft()
            if job not in self.running:
                self.running.append(job)
            chunks.append((job, min(budget, job.left)))
            budget -= chunks[-1][1]
        pairs = sum(n * job.done + n * (n + 1) // 2 for job, n in chunks)
        kv = sum(job.done + 1 for job in decoding)
        tokens = sum(n for _, n in chunks)
        seconds = SlopeCost().seconds(
            decode_rows=len(decoding),
            kv_tokens=kv,
            prefill_tokens=tokens,
            prefill_kv_tokens=pairs,
        )
        yield self.env.timeout(seconds)
        for job, count in [*((job, 0) for job in decoding), *chunks]:
            job.left -= count
            job.done += count or 1
            if not job.left:
                self.made(job)

    def made(self, job: Job) -> None:
        self.first.setdefault(job.number, self.env.now)
        job.to_make -= 1
        if not job.to_make:
            self.last[job.number] = self.env.now
            self.running.remove(job)


def drawn(seed: int, count: int, rate: float) -> list[Arrival]:
    draw, now, found = Random(seed), 0.0, list[Arrival]()
    for _ in range(count):
        now += draw.expovariate(rate)
        prompt, answer = 1 + int(draw.expovariate(1 / 60)), 1 + int(draw.expovariate(1 / 30))
        found.append(Arrival(now, prompt, answer))
    return found


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> Times:
    found: Times = {}
    plain = Tally.finish

    def finish(self: Tally, ticket: Ticket, end_s: float) -> None:
        found[ticket.id] = ticket.first_s, end_s
        plain(self, ticket, end_s)

    monkeypatch.setattr(Tally, "finish", finish)
    return found


@pytest.mark.parametrize(("rate", "rows"), [(1.0, 32), (6.0, 32), (9.0, 6), (30.0, 12)])
def test_every_request_ends_when_simpy_ends_it(rate: float, rows: int, ended: Times) -> None:
    """An idle replica, a busy one, and two that are flooded: rows wait, prompts are cut."""
    arrivals = drawn(rows, 400, rate)
    limits = Limits(
        max_rows=rows,
        max_step_tokens=BUDGET,
        num_blocks=10**6,
        block_tokens=16,
        max_waiting=10**6,
    )
    simulate(arrivals, cost=SlopeCost(), limits=limits)
    by_simpy = SimpyReplica(arrivals, rows)
    assert ended.keys() == by_simpy.last.keys() and len(ended) == 400
    for number, times in ended.items():
        assert times == pytest.approx((by_simpy.first[number], by_simpy.last[number]), rel=1e-6)


@pytest.mark.parametrize("load", [0.3, 0.5])
def test_general_service_waits_as_pollaczek_and_khinchine_say(load: float) -> None:
    """M/G/1: W = lambda E[S^2] / (2 (1 - rho)); one prompt at a time."""
    draw, now, count, arrivals = Random(7), 0.0, 40_000, list[Arrival]()
    for _ in range(count):
        now += draw.expovariate(load / 28.0)
        tokens = draw.randint(1, 30) if draw.random() < 0.9 else draw.randint(100, 181)
        arrivals.append(Arrival(now, tokens, 1))
    mean = sum(a.input_tokens for a in arrivals) / count
    square = sum(a.input_tokens**2 for a in arrivals) / count
    rate = count / now

    class TokenCost(SlopeCost):
        def seconds(
            self, *, decode_rows: int, kv_tokens: int, prefill_tokens: int, prefill_kv_tokens: int
        ) -> float:
            return float(decode_rows + prefill_tokens)

    limits = Limits(1, 1 << 9, num_blocks=64, block_tokens=16, max_waiting=10**9)
    found = simulate(arrivals, cost=TokenCost(), limits=limits)
    theory = rate * square / (2 * (1 - rate * mean))
    assert found.ttft and found.ttft.mean - mean == pytest.approx(theory, rel=0.04)

"""The simulator where theory knows the answer, its clock, its floor and its size."""

import heapq
import math
import resource
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest

from rooflight.batching.request import Limits, Policy
from rooflight.errors import UsageError
from rooflight.plan.serving.simulate.arrivals import Arrival, Lengths, RandomTraffic, parse_lengths
from rooflight.plan.serving.simulate.clock import StepClock
from rooflight.plan.serving.simulate.fleet import Transfer
from rooflight.plan.serving.simulate.run import PoolSplit, Simulation, simulate
from rooflight.plan.serving.simulate.tally import Slo

ONE = Lengths("fixed", 1.0)


@dataclass(frozen=True)
class LinearCost:
    """Seconds of a step, straight in all sizes."""

    base: float
    row: float = 0.0
    kv: float = 0.0
    token: float = 0.0
    late: float = 0.0

    def seconds(
        self, *, decode_rows: int, kv_tokens: int, prefill_tokens: int, prefill_kv_tokens: int
    ) -> float:
        return (
            self.base + self.row * decode_rows + self.kv * kv_tokens + self.token * prefill_tokens
        )

    def late_s(self, *, prefill_tokens: int, prefill_kv_tokens: int) -> float:
        return self.late * prefill_tokens


class RoofCost:
    """A roofline: reads against FLOPs, with bends; about an 8B model on eight chips."""

    def seconds(
        self, *, decode_rows: int, kv_tokens: int, prefill_tokens: int, prefill_kv_tokens: int
    ) -> float:
        flops_s = 2e-5 * (decode_rows + prefill_tokens) + 1e-9 * (prefill_kv_tokens + kv_tokens)
        return 1e-3 + max(5e-3 + 2e-8 * kv_tokens, flops_s) + max(0.0, 1e-8 * kv_tokens - 1e-3)

    def late_s(self, *, prefill_tokens: int, prefill_kv_tokens: int) -> float:
        return 0.0


def limits(**changes: int | Policy) -> Limits:
    sizes: dict[str, int | Policy] = {
        "max_rows": 64,
        "max_step_tokens": 2048,
        "num_blocks": 4000,
        "block_tokens": 64,
        "max_waiting": 10**9,
    }
    return Limits(**(sizes | changes))  # type: ignore[arg-type]


def constant_service(load: float, count: int) -> RandomTraffic:
    return RandomTraffic(load, ONE, ONE, count, seed=1)


def simulate_constant_service(traffic: RandomTraffic) -> Simulation:
    """One prompt of a token at a time, a second each."""
    alone = limits(max_rows=1, max_step_tokens=1)
    return simulate(traffic.arrivals(), cost=LinearCost(1.0), limits=alone)


@pytest.mark.parametrize(
    ("load", "count"), [(0.5, 200_000), pytest.param(0.8, 1_000_000, marks=pytest.mark.full)]
)
def test_constant_service_waits_as_the_formula_says(load: float, count: int) -> None:
    """M/D/1: W = rho D / (2 (1 - rho)), at the rate that was drawn."""
    found = simulate_constant_service(constant_service(load, count))
    assert found.ttft
    drawn = count / found.duration_s
    assert found.ttft.mean - 1 == pytest.approx(drawn / (2 * (1 - drawn)), rel=0.02)


@pytest.mark.parametrize("load", [0.3, 0.8, 0.95])
def test_constant_service_waits_request_by_request_as_in_a_queue(load: float) -> None:
    """Lindley: the next wait is this wait, and the service, less the gap."""
    traffic = constant_service(load, 10_000)
    times, wait, total = [arrival.time_s for arrival in traffic.arrivals()], 0.0, 0.0
    for before, after in pairwise(times):
        wait = max(0.0, wait + 1.0 - (after - before))
        total += wait
    found = simulate_constant_service(traffic)
    assert found.ttft and found.ttft.mean - 1 == pytest.approx(total / len(times), rel=1e-9)


def erlang_c(servers: int, erlangs: float) -> float:
    """The share of arrivals that wait in M/M/c."""
    terms = [erlangs**n / math.factorial(n) for n in range(servers)]
    last = erlangs**servers / math.factorial(servers) * servers / (servers - erlangs)
    return last / (sum(terms) + last)


STEP_S = 1 / 1000


def simulate_servers(servers: int, load: float, count: int) -> tuple[RandomTraffic, Simulation]:
    """Every row is a server, a step a short time; lengths are exponential, a second on average."""
    traffic = RandomTraffic(load * servers, ONE, Lengths("exponential", 1 / STEP_S), count, seed=3)
    found = simulate(
        traffic.arrivals(),
        cost=LinearCost(STEP_S),
        limits=limits(max_rows=servers, block_tokens=1 << 14),
    )
    return traffic, found


@pytest.mark.parametrize(
    ("servers", "load", "count"),
    [(1, 0.5, 100_000), pytest.param(4, 0.75, 1_000_000, marks=pytest.mark.full)],
)
def test_exponential_service_waits_as_the_formula_says(
    servers: int, load: float, count: int
) -> None:
    """M/M/c: W = C(c, a) S / (c - a), with a the offered load in servers and C by Erlang.

    A prompt is seen half a step after it came, on average, and its first token takes a step.
    """
    _, found = simulate_servers(servers, load, count)
    assert found.ttft
    service_s = found.output_tokens / found.num_finished * STEP_S
    erlangs = service_s * found.num_finished / found.duration_s
    theory_s = erlang_c(servers, erlangs) * service_s / (servers - erlangs)
    assert found.ttft.mean - 1.5 * STEP_S == pytest.approx(theory_s, rel=0.02)


@pytest.mark.parametrize(("servers", "load"), [(2, 0.9), (4, 0.75), (8, 0.95)])
def test_several_servers_wait_request_by_request_as_in_a_queue(servers: int, load: float) -> None:
    """Kiefer and Wolfowitz: the next request goes to the server that is free first."""
    traffic, found = simulate_servers(servers, load, 10_000)
    free, total = [0.0] * servers, 0.0
    for arrival in traffic.arrivals():
        begin = max(arrival.time_s, heapq.heappop(free))
        total += begin - arrival.time_s
        heapq.heappush(free, begin + arrival.output_tokens * STEP_S)
    assert found.ttft
    waited_s = found.ttft.mean - 1.5 * STEP_S
    assert waited_s == pytest.approx(total / found.num_finished, rel=0.01, abs=STEP_S)


@pytest.mark.parametrize("cost", [RoofCost(), LinearCost(1e-3, 1e-5, 3e-8)])
def test_a_run_of_decode_steps_lasts_as_long_as_its_steps(cost: RoofCost | LinearCost) -> None:
    clock, random = StepClock(cost), np.random.default_rng(0)
    for _ in range(300):
        rows = int(random.integers(1, 200))
        kv, steps = int(rows * random.integers(1, 9000)), int(random.integers(1, 3000))
        single = [
            cost.seconds(
                decode_rows=rows,
                kv_tokens=kv + at * rows,
                prefill_tokens=0,
                prefill_kv_tokens=0,
            )
            for at in range(steps)
        ]
        count, seconds = clock.decode(rows=rows, kv=kv, steps=steps, until_s=math.inf)
        assert count == steps and seconds == pytest.approx(sum(single), rel=2e-6)
        until_s = sum(single) * float(random.random())
        count, seconds = clock.decode(rows=rows, kv=kv, steps=steps, until_s=until_s)
        begins = [s - own for s, own in zip(np.cumsum(single), single, strict=True)]
        assert abs(count - sum(begin < until_s for begin in begins)) <= 1
        assert seconds >= until_s


def everyday(num_requests: int = 3000, rate: float = 20.0) -> RandomTraffic:
    lengths = parse_lengths("800~0.8", what="in"), parse_lengths("200~0.6", what="out")
    return RandomTraffic(rate, *lengths, num_requests)


def run(
    traffic: RandomTraffic, policy: Policy = Policy.CONTINUOUS, *, replicas: int = 1
) -> Simulation:
    return simulate(
        traffic.arrivals(),
        cost=RoofCost(),
        limits=limits(policy=policy),
        slo=Slo(0.5, 0.02),
        replicas=replicas,
    )


@pytest.mark.parametrize("policy", list(Policy))
def test_every_token_is_accounted_for_and_nothing_beats_the_floor(policy: Policy) -> None:
    arrivals = list(everyday().arrivals())
    found = run(everyday(), policy, replicas=3)
    assert found.num_finished == found.num_requests == 3000
    assert found.output_tokens == sum(arrival.output_tokens for arrival in arrivals)
    assert found.input_tokens == sum(arrival.input_tokens for arrival in arrivals)
    assert found.ttft and found.tpot and found.e2e
    assert found.floor.ttft_s <= found.ttft.mean
    assert found.floor.e2e_s <= found.e2e.mean
    assert found.paid >= 1


def test_more_replicas_are_never_slower_on_average() -> None:
    means = [run(everyday(rate=60), replicas=count).e2e for count in (2, 4, 8)]
    assert all(a and b and a.mean > b.mean for a, b in pairwise(means))


def test_continuous_batching_beats_static_batching() -> None:
    continuous = run(everyday(), Policy.CONTINUOUS)
    static = run(everyday(), Policy.STATIC)
    assert continuous.ttft and static.ttft
    assert continuous.ttft.mean < static.ttft.mean / 2
    assert continuous.good_share > static.good_share


def test_bursts_wait_longer_than_a_poisson_stream() -> None:
    even, bursts = (
        simulate(
            RandomTraffic(20, ONE, ONE, 20_000, burstiness=cv).arrivals(),
            cost=LinearCost(0.03),
            limits=limits(max_rows=1, max_step_tokens=1),
        ).ttft
        for cv in (1.0, 3.0)
    )
    assert even and bursts and bursts.mean > 2 * even.mean


def test_a_separated_fleet_finishes_everything_and_pays_for_the_transfer() -> None:
    def disaggregated(bytes_per_s: float) -> Simulation:
        return simulate(
            everyday().arrivals(),
            cost=RoofCost(),
            limits=limits(),
            replicas=PoolSplit(2, 3, Transfer(131072, bytes_per_s)),
        )

    fast, slow = disaggregated(1e12), disaggregated(2e9)
    assert fast.num_finished == slow.num_finished == 3000
    assert fast.output_tokens == slow.output_tokens
    assert fast.ttft and slow.ttft and fast.e2e and slow.e2e
    assert fast.ttft == slow.ttft  # the first token does not wait for the transfer
    assert slow.e2e.mean > fast.e2e.mean + 0.03
    assert slow.prefill_replicas == 2 and slow.replicas == 5


def test_tokens_of_a_pipeline_leave_late_and_none_is_slower_for_it() -> None:
    traffic = RandomTraffic(0.1, Lengths("fixed", 200.0), Lengths("fixed", 20.0), 300, seed=2)

    def run(late: float) -> Simulation:
        cost = LinearCost(0.01, row=1e-4, token=1e-4, late=late)
        return simulate(traffic.arrivals(), cost=cost, limits=limits())

    plain, staged = run(0.0), run(1e-3)
    assert plain.ttft and plain.tpot and plain.e2e and staged.ttft and staged.tpot and staged.e2e
    assert staged.ttft.mean == pytest.approx(plain.ttft.mean + 0.2, rel=0.02)
    assert staged.e2e.mean - staged.ttft.mean == pytest.approx(plain.e2e.mean - plain.ttft.mean)
    assert staged.tpot.mean == pytest.approx(plain.tpot.mean)
    assert staged.floor.ttft_s == pytest.approx(plain.floor.ttft_s + 0.2)


def test_what_does_not_fit_is_rejected_and_is_not_good() -> None:
    arrivals = [Arrival(0.0, 10**6, 5), Arrival(0.0, 10, 5)]
    found = simulate(arrivals, cost=RoofCost(), limits=limits())
    assert (found.num_rejected, found.num_finished, found.good_share) == (1, 1, 0.5)


def test_nothing_to_simulate_is_an_error() -> None:
    with pytest.raises(UsageError, match="no requests"):
        simulate([], cost=RoofCost(), limits=limits())


def test_shared_prefixes_save_prefill() -> None:
    arrivals = [Arrival(at * 0.1, 1024, 20, (7,), 960) for at in range(200)]
    alone = [arrival._replace(segments=(at,)) for at, arrival in enumerate(arrivals)]
    shared, apart = (simulate(a, cost=RoofCost(), limits=limits()) for a in (arrivals, alone))
    assert shared.cached_tokens == 199 * 960 and apart.cached_tokens == 0
    assert shared.ttft and apart.ttft and shared.ttft.mean < apart.ttft.mean


def test_ten_times_the_requests_take_no_more_memory() -> None:
    run(everyday(2000), replicas=10)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run(everyday(20_000), replicas=10)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 30_000  # kB

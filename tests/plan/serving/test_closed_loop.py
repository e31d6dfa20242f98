"""A closed loop, held against the open loop of the times that it found, and against Little."""

import heapq
from collections.abc import Iterator

import pytest

from rooflight.batching.request import Limits
from rooflight.errors import UsageError
from rooflight.plan.serving.simulate.arrivals import Arrival, RandomTraffic, at_once, parse_lengths
from rooflight.plan.serving.simulate.fleet import Transfer
from rooflight.plan.serving.simulate.replica import Ticket
from rooflight.plan.serving.simulate.run import PoolSplit, Simulation, simulate
from rooflight.plan.serving.simulate.tally import Tally


class RoofCost:
    """Steps that read weights and caches, or compute; long prompts stretch them."""

    def seconds(
        self, *, decode_rows: int, kv_tokens: int, prefill_tokens: int, prefill_kv_tokens: int
    ) -> float:
        return max(4e-3 + 2e-8 * kv_tokens, 2e-5 * (decode_rows + prefill_tokens))

    def late_s(self, *, prefill_tokens: int, prefill_kv_tokens: int) -> float:
        return 1e-6 * prefill_tokens


LIMITS = Limits(max_rows=32, max_step_tokens=512, num_blocks=900, block_tokens=16, max_waiting=99)
SIZES = [(1, 1), (7, 1), (40, 1), (64, 3), (90, 2)]  # clients, replicas; the last ones queue


def requests(count: int, seed: int = 0) -> Iterator[Arrival]:
    lengths = parse_lengths("200~0.8", what="isl"), parse_lengths("80~0.6", what="osl")
    return at_once(RandomTraffic(1.0, *lengths, count, seed=seed).arrivals())


Ended = dict[int, tuple[Arrival, float]]


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> Ended:
    """Every request that ended, by its number, with the time."""
    found: Ended = {}
    plain = Tally.finish

    def finish(self: Tally, ticket: Ticket, end_s: float) -> None:
        found[ticket.id] = ticket.arrival, end_s
        plain(self, ticket, end_s)

    monkeypatch.setattr(Tally, "finish", finish)
    return found


def served(count: int, clients: int, replicas: int, limits: Limits = LIMITS) -> Simulation:
    return simulate(
        requests(count), cost=RoofCost(), limits=limits, replicas=replicas, concurrency=clients
    )


@pytest.mark.parametrize(("clients", "replicas"), SIZES)
def test_the_open_loop_of_the_same_times_comes_out_the_same(
    clients: int, replicas: int, ended: Ended
) -> None:
    """The open loop has its own oracles; only the times of sending are new."""
    closed = served(600, clients, replicas)
    before = dict(sorted(ended.items()))
    arrivals = [arrival for arrival, _ in before.values()]
    ended.clear()
    opened = simulate(arrivals, cost=RoofCost(), limits=LIMITS, replicas=replicas)
    assert ended.keys() == before.keys()
    for number, (_, end_s) in before.items():
        assert ended[number][1] == pytest.approx(end_s, rel=1e-9)
    assert closed.ttft and opened.ttft and closed.tpot and opened.tpot
    assert closed.ttft.mean == pytest.approx(opened.ttft.mean, rel=1e-9)
    assert closed.tpot.mean == pytest.approx(opened.tpot.mean, rel=1e-9)
    assert closed.preemptions == opened.preemptions


@pytest.mark.parametrize(("clients", "replicas"), SIZES)
def test_each_client_has_one_request_open_at_a_time(
    clients: int, replicas: int, ended: Ended
) -> None:
    """At every sending a client is free, and none stays idle while there are requests."""
    found = served(600, clients, replicas)
    assert found.num_finished == found.num_requests == 600
    free = [0.0] * clients
    for _, (arrival, end_s) in sorted(ended.items()):
        assert arrival.time_s == heapq.heappop(free)
        heapq.heappush(free, end_s)
    assert found.e2e
    open_on_average = found.num_finished * found.e2e.mean / found.duration_s  # Little
    assert 0.75 * clients < open_on_average <= clients * (1 + 1e-9)


def test_a_client_alone_pays_the_floor() -> None:
    alike = at_once(
        RandomTraffic(
            1.0, parse_lengths("300", what="isl"), parse_lengths("50", what="osl"), 20
        ).arrivals()
    )
    found = simulate(alike, cost=RoofCost(), limits=LIMITS, concurrency=1)
    assert found.e2e and found.e2e.largest == pytest.approx(found.floor.e2e_s, rel=1e-3)
    assert found.paid == pytest.approx(1.0, rel=1e-3) and found.mean_rows == 1.0


def test_who_asks_for_too_much_goes_on_with_the_next_request() -> None:
    small = Limits(max_rows=4, max_step_tokens=512, num_blocks=30, block_tokens=16, max_waiting=99)
    found = served(300, 20, 1, small)
    assert 0 < found.num_rejected < 60
    assert found.num_finished + found.num_rejected == found.num_requests == 300


def test_all_clients_may_wait() -> None:
    few = Limits(max_rows=4, max_step_tokens=512, num_blocks=900, block_tokens=16, max_waiting=2)
    found = served(300, 50, 1, few)
    assert found.num_finished == 300 and found.num_rejected == 0


def test_more_clients_have_more_throughput_and_longer_waits() -> None:
    found = [served(400, clients, 1) for clients in (1, 4, 16, 64)]
    rates = [one.output_tokens / one.duration_s for one in found]
    assert rates == sorted(rates) and rates[2] > 3 * rates[0]
    means = [one.e2e.mean for one in found if one.e2e]
    assert means == sorted(means)


def test_disaggregated_replicas_have_no_closed_loop() -> None:
    split = PoolSplit(1, 1, Transfer(1e9, 1e5))
    with pytest.raises(UsageError, match="closed loop"):
        simulate(requests(9), cost=RoofCost(), limits=LIMITS, replicas=split, concurrency=2)

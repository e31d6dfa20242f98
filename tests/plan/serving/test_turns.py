"""Conversations: each turn held against the floor, the open loop, and caches counted by hand."""

import itertools
import random
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import replace

import numpy as np
import pytest

from rooflight.batching.request import Limits
from rooflight.errors import ParseError, UsageError
from rooflight.plan.serving.simulate.arrivals import Arrival, RandomTraffic, at_once, parse_lengths
from rooflight.plan.serving.simulate.clock import OffloadTimes, StepClock, floor_seconds
from rooflight.plan.serving.simulate.fleet import Transfer
from rooflight.plan.serving.simulate.replica import Ticket, block_keys
from rooflight.plan.serving.simulate.reuse import ReuseLog, hit_curve
from rooflight.plan.serving.simulate.run import PoolSplit, Simulation, simulate
from rooflight.plan.serving.simulate.tally import Tally
from rooflight.plan.serving.simulate.turns import parse_think, with_turns


class RoofCost:
    """Steps that read weights and caches, or compute; long prompts stretch them."""

    def seconds(
        self, *, decode_rows: int, kv_tokens: int, prefill_tokens: int, prefill_kv_tokens: int
    ) -> float:
        return max(4e-3 + 2e-8 * kv_tokens, 2e-5 * (decode_rows + prefill_tokens))

    def late_s(self, *, prefill_tokens: int, prefill_kv_tokens: int) -> float:
        return 1e-6 * prefill_tokens


COST, BLOCK = RoofCost(), 16
LIMITS = Limits(max_rows=32, max_step_tokens=512, num_blocks=900, block_tokens=16, max_waiting=99)
WIDE = Limits(max_rows=64, max_step_tokens=2048, num_blocks=90_000, block_tokens=16, max_waiting=99)

Ended = dict[int, tuple[Arrival, float, float]]


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> Ended:
    """Every request that ended, by its number: when its first token came, and its last."""
    found: Ended = {}
    plain = Tally.finish

    def finish(self: Tally, ticket: Ticket, end_s: float) -> None:
        found[ticket.id] = ticket.arrival, ticket.first_s, end_s
        plain(self, ticket, end_s)

    monkeypatch.setattr(Tally, "finish", finish)
    return found


def sessions(
    count: int, *, rate: float = 4.0, turns: str = "1..8", think: str = "2s~1", seed: int = 0
) -> Iterator[Arrival]:
    lengths = parse_lengths("200~0.8", what="isl"), parse_lengths("80~0.6", what="osl")
    return with_turns(
        RandomTraffic(rate, *lengths, count, seed=seed).arrivals(),
        parse_lengths("100~1", what="isl"),
        lengths[1],
        turns=parse_lengths(turns, what="turns"),
        think=parse_think(think, what="think"),
        seed=seed,
    )


def sent(ended: Ended) -> list[Arrival]:
    """What was sent, in order, as an open stream: nobody waits for anything."""
    return [arrival._replace(then=None) for _, (arrival, _, _) in sorted(ended.items())]


def test_a_prompt_is_all_that_was_said_before_and_more() -> None:
    for first in sessions(300):
        turn, number = first, 1
        while (then := turn.then) is not None:
            assert then.input_tokens > turn.input_tokens + turn.output_tokens
            assert (then.session, then.turn) == (first.session, number + 1)
            assert block_keys(then, BLOCK)[: len(block_keys(turn, BLOCK))] == block_keys(
                turn, BLOCK
            )
            turn, number = then, number + 1
        assert 1 <= number <= 8


def test_sessions_have_the_turns_and_the_times_between_them_that_were_asked_for() -> None:
    drawn = list(sessions(4000))
    counts, waits = list[int](), list[float]()
    for first in drawn:
        turn, count = first.then, 1
        while turn is not None:
            waits.append(turn.time_s)
            turn, count = turn.then, count + 1
        counts.append(count)
    assert np.mean(counts) == pytest.approx(4.5, rel=0.02) and {*counts} == {*range(1, 9)}
    assert np.mean(waits) == pytest.approx(2.0, rel=0.05)
    assert np.std(waits) == pytest.approx(2.0, rel=0.1)
    assert drawn == list(sessions(4000)) != list(sessions(4000, seed=1))


@pytest.mark.parametrize(
    ("text", "mean"),
    [("5s", 5000), ("5", 5000), ("1s..9s", 5000), ("0.5~1.5", 500), ("exp:20ms", 20)],
)
def test_times_are_written_as_lengths_are(text: str, mean: float) -> None:
    assert parse_think(text, what="--think").mean == mean


@pytest.mark.parametrize("text", ["0s", "x", "9s..1s", "3h", "1e9", "5s~", "-1s"])
def test_times_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(ParseError, match="--think"):
        parse_think(text, what="--think")


def test_a_session_alone_pays_the_floor_of_what_is_not_cached(ended: Ended) -> None:
    found = simulate(sessions(1, turns="12"), cost=COST, limits=WIDE, has_turns=True)
    clock, before, cached_in_all = StepClock(COST), 0, 0
    assert found.num_finished == len(ended) == 12
    for arrival, first_s, end_s in ended.values():
        cached = before // BLOCK * BLOCK
        before = arrival.input_tokens + arrival.output_tokens - 1  # the last was never computed
        cached_in_all += cached
        floor = floor_seconds(
            clock,
            input_tokens=arrival.input_tokens,
            output_tokens=arrival.output_tokens,
            cached_tokens=cached,
        )
        assert first_s - arrival.time_s == pytest.approx(floor.ttft_s, rel=1e-9)
        assert end_s - arrival.time_s == pytest.approx(floor.e2e_s, rel=1e-4)
    assert found.cached_tokens == cached_in_all > 0.7 * found.input_tokens


@pytest.mark.parametrize("clients", [None, 5, 40])
@pytest.mark.parametrize("replicas", [1, 3])
def test_the_open_loop_of_the_same_times_comes_out_the_same(
    clients: int | None, replicas: int, ended: Ended
) -> None:
    """The open loop has its own oracles; only the times of sending are new."""
    found = simulate(
        sessions(200, rate=12.0),
        cost=COST,
        limits=LIMITS,
        replicas=replicas,
        concurrency=clients,
        has_turns=True,
    )
    before, arrivals = dict(ended), sent(ended)
    ended.clear()
    opened = simulate(arrivals, cost=COST, limits=LIMITS, replicas=replicas)
    assert ended.keys() == before.keys() and len(before) > 800
    for number, (_, first_s, end_s) in before.items():
        assert ended[number][1:] == pytest.approx((first_s, end_s), rel=1e-9)
    assert found.cached_tokens == opened.cached_tokens > 0
    assert found.preemptions == opened.preemptions


def test_each_turn_waits_for_the_answer_and_the_time_between(ended: Ended) -> None:
    drawn = {first.session: first for first in sessions(60)}
    simulate(sessions(60), cost=COST, limits=LIMITS, replicas=2, has_turns=True)
    answered: dict[int, float] = {}
    for arrival, _, end_s in (one for _, one in sorted(ended.items())):
        turn = drawn[arrival.session]
        due_s = turn.time_s + answered.get(arrival.session, 0.0)
        assert arrival == turn._replace(time_s=pytest.approx(due_s, rel=1e-12))
        answered[arrival.session] = end_s
        if turn.then:
            drawn[arrival.session] = turn.then
        else:
            del drawn[arrival.session]
    assert not drawn


def test_clients_have_one_session_each_and_none_stays_idle(ended: Ended) -> None:
    found = simulate(
        at_once(sessions(100, think="1ms")),
        cost=COST,
        limits=LIMITS,
        concurrency=7,
        has_turns=True,
    )
    first: dict[int, float] = {}
    last: dict[int, float] = {}
    for arrival, _, end_s in ended.values():
        first[arrival.session] = min(first.get(arrival.session, end_s), arrival.time_s)
        last[arrival.session] = max(last.get(arrival.session, 0.0), end_s)
    begun = sorted(first.values())
    assert begun[:7] == [0.0] * 7
    assert begun[7:] == sorted(last.values())[: len(begun) - 7]
    assert found.num_finished == len(ended)


@pytest.mark.parametrize("limits", [replace(LIMITS, block_tokens=4096), LIMITS])
def test_without_hits_turns_are_as_slow_as_requests_of_strangers(
    limits: Limits, ended: Ended
) -> None:
    """Blocks longer than any session, or so little room that each session takes that of others."""
    one_by_one = limits.block_tokens == BLOCK
    if one_by_one:
        limits = replace(limits, num_blocks=47, max_step_tokens=2048)  # a prompt takes all of them
        alike = [Arrival(0.5 * at, 700, 17, session=at) for at in range(3)]
        traffic = [
            first._replace(then=first._replace(time_s=9.0, input_tokens=725, turn=2))
            for first in alike
        ]
    else:
        traffic = list(sessions(80))
    found = simulate(traffic, cost=COST, limits=limits, has_turns=True)
    before, arrivals = dict(ended), [one._replace(session=-1) for one in sent(ended)]
    assert found.cached_tokens == 0 and len(before) == (6 if one_by_one else len(before))
    ended.clear()
    simulate(arrivals, cost=COST, limits=limits)
    for number, (_, first_s, end_s) in before.items():
        assert ended[number][1:] == pytest.approx((first_s, end_s), rel=1e-9)


class CountedPool:
    """Blocks of a replica that serves one request at a time, oldest first, each with its key."""

    def __init__(self, num_blocks: int) -> None:
        self.free: list[object] = [None] * num_blocks

    def serve(self, arrival: Arrival) -> int:
        """Blocks of the prompt that are found."""
        keys = block_keys(arrival, BLOCK)
        asked = keys[: (arrival.input_tokens - 1) // BLOCK]
        cached = {*self.free}
        hits = {*itertools.takewhile(cached.__contains__, asked)}
        self.free = [key for key in self.free if key not in hits]
        tokens = arrival.input_tokens + arrival.output_tokens - 1
        self.free = self.free[-(-tokens // BLOCK) - len(hits) :]
        known = {key for key in self.free if key is not None}
        mine = [None] * (-(-tokens // BLOCK) - len(keys)) + [*keys[::-1]]
        self.free += [None if key in known else key for key in mine]
        return len(hits)


@pytest.mark.parametrize("num_blocks", [120, 200, 400, 9000])
def test_hits_are_those_of_a_pool_counted_by_hand(num_blocks: int, ended: Ended) -> None:
    """One request at a time, of sessions that take turns."""
    limits = replace(LIMITS, num_blocks=num_blocks, max_rows=1)
    found = simulate(sessions(40, think="30s~1"), cost=COST, limits=limits, has_turns=True)
    assert found.num_rejected == 0 or num_blocks == 120
    order = [arrival for arrival, _, _ in sorted(ended.values(), key=lambda one: one[1])]
    pool = CountedPool(num_blocks)
    hits = [pool.serve(arrival) for arrival in order]
    assert found.cached_tokens == BLOCK * sum(hits)
    assert (sum(hits) > 0) and (num_blocks == 9000) == (sum(hits) == hits_with_room(order))


def hits_with_room(order: Iterable[Arrival]) -> int:
    """All that a session said before, in whole blocks."""
    said: dict[int, int] = {}
    hits = 0
    for arrival in order:
        hits += said.get(arrival.session, 0) // BLOCK
        said[arrival.session] = arrival.input_tokens + arrival.output_tokens - 1
    return hits


def test_sessions_stay_with_their_replica_while_it_has_room() -> None:
    one, five = (
        simulate(sessions(200), cost=COST, limits=WIDE, replicas=count, has_turns=True)
        for count in (1, 5)
    )
    assert one.cached_tokens == five.cached_tokens
    many = sessions(400, rate=1e3, think="1ms")
    crowd = simulate(many, cost=COST, limits=WIDE, replicas=5, has_turns=True)
    assert 0.5 * one.cached_share < crowd.cached_share < one.cached_share  # some had to move


def test_first_and_later_turns_make_up_the_whole() -> None:
    alike = sessions(150, rate=0.5, turns="6", think="1s")
    found = simulate(alike, cost=COST, limits=WIDE, has_turns=True)
    assert found.ttft and found.ttft_first and found.ttft_later
    assert found.ttft_first.count == 150 and found.ttft_later.count == 750
    assert found.ttft.count == 900
    total = 150 * found.ttft_first.mean + 750 * found.ttft_later.mean
    assert found.ttft.mean == pytest.approx(total / 900)
    short = parse_lengths("9", what="isl")
    traffic = RandomTraffic(1.0, short, short, 9).arrivals()
    plain = simulate(traffic, cost=COST, limits=WIDE)
    assert plain.ttft_first is plain.ttft_later is None


def test_a_session_that_outgrows_the_pool_ends_and_its_client_goes_on() -> None:
    small = replace(LIMITS, num_blocks=60)
    found = simulate(
        sessions(50, turns="20"), cost=COST, limits=small, concurrency=3, has_turns=True
    )
    assert found.num_rejected == 50 and found.num_finished + 50 == found.num_requests < 50 * 20


def test_a_recorded_turn_waits_for_the_answer_before_it(ended: Ended) -> None:
    recorded = [
        Arrival(at, 100 + 50 * turn, 40, session=session, turn=turn)
        for at, session, turn in [
            (0.0, 0, 1),
            (0.05, 0, 2),
            (0.06, 1, 1),
            (0.07, 0, 3),
            (9.0, 0, 4),
        ]
    ]
    found = simulate(recorded, cost=COST, limits=LIMITS, has_turns=True)
    assert found.num_finished == 5
    mine = [one for _, one in sorted(ended.items()) if one[0].session == 0]
    for (_, _, end_s), (later, _, _) in itertools.pairwise(mine[:3]):
        assert later.time_s == end_s
    assert mine[3][0].time_s == 9.0
    assert next(one for one in ended.values() if one[0].session == 1)[0].time_s == 0.06


def test_disaggregated_replicas_have_no_turns() -> None:
    split = PoolSplit(1, 1, Transfer(1e9, 1e5))
    with pytest.raises(UsageError, match="turns"):
        simulate(sessions(9), cost=COST, limits=LIMITS, replicas=split, has_turns=True)


def test_what_comes_back_from_host_memory_costs_its_link(ended: Ended) -> None:
    """Three sessions in a pool for one: the second turn finds its blocks on the host."""
    limits = replace(LIMITS, num_blocks=47, max_step_tokens=2048)
    first = [Arrival(0.5 * at, 700, 17, session=at) for at in range(3)]
    both = [one._replace(then=one._replace(time_s=9.0, input_tokens=725)) for one in first]

    def run(host_blocks: int, restore_s: float) -> list[float]:
        ended.clear()
        found = simulate(
            both,
            cost=COST,
            limits=replace(limits, host_blocks=host_blocks),
            has_turns=True,
            offload=OffloadTimes(restore_s),
        )
        assert (
            found.restored_tokens == found.cached_tokens == (3 * 44 * BLOCK if host_blocks else 0)
        )
        return [first_s - arrival.time_s for _, (arrival, first_s, _) in sorted(ended.items())]

    none, free, slow = run(0, 1e-3), run(200, 0.0), run(200, 1e-3)
    assert free[:3] == slow[:3] == none[:3]
    for recomputed, free_s, restored in zip(none[3:], free[3:], slow[3:], strict=True):
        assert restored - free_s == pytest.approx(44 * 1e-3)
        assert recomputed - free_s == pytest.approx(
            COST.seconds(decode_rows=0, kv_tokens=0, prefill_tokens=725, prefill_kv_tokens=0)
            - COST.seconds(decode_rows=0, kv_tokens=0, prefill_tokens=21, prefill_kv_tokens=0)
            + 1e-6 * 704
        )


def test_what_comes_back_from_an_ssd_waits_for_the_drive(ended: Ended) -> None:
    """Host memory for one session of three; nothing else runs while a turn waits for its blocks."""
    limits = replace(LIMITS, num_blocks=47, max_step_tokens=2048, host_blocks=50, ssd_blocks=400)
    first = [Arrival(0.5 * at, 700, 17, session=at) for at in range(3)]
    both = [one._replace(then=one._replace(time_s=9.0, input_tokens=725)) for one in first]

    def run(times: OffloadTimes) -> tuple[Simulation, list[float]]:
        ended.clear()
        found = simulate(both, cost=COST, limits=limits, has_turns=True, offload=times)
        later = [first_s - one.time_s for one, first_s, _ in ended.values() if one.time_s > 5]
        return found, sorted(later)

    (found, free), (_, slow) = run(OffloadTimes()), run(OffloadTimes(0.0, 1e-3, 0.0, 0.02))
    assert found.cached_tokens == found.restored_tokens == 3 * 44 * BLOCK > found.ssd_read_tokens
    blocks = found.ssd_read_tokens // BLOCK
    assert blocks >= 3 * 38 and sum(slow) - sum(free) == pytest.approx(3 * 0.02 + blocks * 1e-3)
    _, behind_writes = run(OffloadTimes(0.0, 1e-3, 0.1, 0.02))
    assert sum(behind_writes) > sum(slow) + 1.0
    without = simulate(both, cost=COST, limits=replace(limits, ssd_blocks=0), has_turns=True)
    assert without.cached_tokens < found.cached_tokens and not without.ssd_written_tokens


def test_a_drive_reads_for_one_after_another(ended: Ended) -> None:
    """Twenty sessions come back at once to a replica that computes nearly for free."""
    limits = Limits(32, 4096, 60, BLOCK, 99, host_blocks=60, ssd_blocks=2000)
    first = [Arrival(0.5 * at, 700, 2, session=at) for at in range(20)]
    again = [Arrival(20.0, 720, 2, session=at, turn=2) for at in range(20)]
    times = OffloadTimes(0.0, 0.01, 0.0, 0.05)
    found = simulate([*first, *again], cost=COST, limits=limits, offload=times)
    waits = sorted(s - one.time_s for one, s, _ in ended.values() if one.time_s == 20.0)
    blocks = found.ssd_read_tokens // BLOCK
    assert blocks > 15 * 40 and max(waits) == pytest.approx(20 * 0.05 + blocks * 0.01, rel=0.05)
    assert all(late - early > 0.3 for early, late in itertools.pairwise(waits[3:]))


def lru_hits(prompts: Iterable[tuple[Seq[object], int]], capacity: int) -> int:
    """A cache that forgets what was used least recently, block by block."""
    cache: OrderedDict[object, None] = OrderedDict()
    hits = 0
    for keys, tokens in prompts:
        asked = keys[: (tokens - 1) // BLOCK]
        hits += sum(1 for _ in itertools.takewhile(cache.__contains__, asked))
        for key in reversed(keys):
            cache.pop(key, None)
            cache[key] = None
            if len(cache) > capacity:
                cache.popitem(last=False)
    return hits


CAPACITIES = (0, 1, 2, 3, 5, 8, 13, 30, 100, 1000, 10**6)


@pytest.mark.parametrize("seed", range(40))
def test_the_curve_is_that_of_a_cache_of_each_size(seed: int) -> None:
    drawn = random.Random(seed)
    log, prompts = ReuseLog(BLOCK), list[tuple[list[object], int]]()
    for _ in range(drawn.randint(1, 80)):
        path: tuple[int, ...] = ()
        keys: list[object] = []
        for _ in range(drawn.randint(0, 9)):
            path += (drawn.randint(0, drawn.choice((1, 1, 6))),)
            keys.append(path)
        tokens = max(1, (len(keys) - drawn.randint(0, 2)) * BLOCK + drawn.randint(0, 9))
        prompts.append((keys, tokens))
        log.add(keys, tokens)
    curve = hit_curve([log])
    assert curve
    total = sum(tokens for _, tokens in prompts)
    for capacity in CAPACITIES:
        hits = lru_hits(prompts, capacity) * BLOCK
        assert curve.share(capacity * BLOCK) == pytest.approx(hits / total, abs=1e-12)
    assert curve.share(curve.most_tokens) == curve.share(1e15)
    assert not curve.most_tokens or curve.share(curve.most_tokens - 1) < curve.share(1e15)


@pytest.mark.parametrize("replicas", [1, 3])
def test_the_curve_of_a_simulation_is_that_of_what_came_to_each_replica(
    replicas: int, ended: Ended
) -> None:
    """With room for everything, the scheduler has all that the curve says."""
    found = simulate(
        sessions(150), cost=COST, limits=WIDE, replicas=replicas, has_turns=True, counts_hits=True
    )
    assert found.hits and found.cached_share == found.hits.share(1e15)
    if replicas == 1:
        prompts = [(block_keys(one, BLOCK), one.input_tokens) for one in sent(ended)]
        for capacity in (50, 100, 300, 1000):
            hits = lru_hits(prompts, capacity) * BLOCK / found.input_tokens
            assert found.hits.share(capacity * BLOCK) == pytest.approx(hits)
            assert 0 < hits < found.cached_share


def test_a_replica_under_load_is_near_the_curve() -> None:
    shares = [
        simulate(
            sessions(300),
            cost=COST,
            limits=replace(WIDE, num_blocks=num_blocks),
            has_turns=True,
            counts_hits=True,
        )
        for num_blocks in (400, 800, 1600)
    ]
    for found, num_blocks in zip(shares, (400, 800, 1600), strict=True):
        assert found.hits
        assert found.cached_share == pytest.approx(found.hits.share(num_blocks * BLOCK), abs=0.06)

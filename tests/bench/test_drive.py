"""The load generator against a server that does exactly what its script says."""

import time
from collections.abc import Iterator

import numpy as np
import pytest

from rooflight.errors import RooflightError, UsageError
from rooflight.measure.load.drive import drive
from rooflight.measure.load.target import Target
from rooflight.plan.serving.simulate.arrivals import (
    Arrival,
    Lengths,
    RandomTraffic,
    at_once,
    with_prefixes,
)
from rooflight.plan.serving.simulate.tally import Slo

from .scripted import scripted

# The script's own times are exact, and what a client measures is never less. How much more it is
# depends on the machine, so a script waits long, and a client may be late by half of that.
LATE = 0.5


def _even(count: int, *, gap_s: float = 0.02, outputs: int = 4) -> list[Arrival]:
    return [Arrival(at * gap_s, 8, outputs) for at in range(count)]


def test_latencies_are_those_that_the_server_made() -> None:
    first_s, gap_s = 0.5, 0.25
    with scripted({"first_s": first_s, "gap_s": gap_s}) as server:
        driven = drive(_even(20, outputs=5), num_requests=20, target=Target(server.url))
        log = server.log()
    found = driven.measured
    assert (found.num_finished, found.errors) == (20, {})
    assert found.ttft and found.tpot and found.itl and found.e2e
    left = np.array([entry["left_s"] for entry in log])
    gaps = np.diff(left, axis=1)
    for times, exact in (
        (found.ttft, [entry["left_s"][0] - entry["came_s"] for entry in log]),
        (found.tpot, gaps.mean(axis=1)),
        (found.itl, gaps.ravel()),
        (found.e2e, [entry["left_s"][-1] - entry["came_s"] for entry in log]),
    ):
        assert times.p50 == pytest.approx(np.median(exact), rel=LATE)
    assert found.ttft.curve[0] >= first_s and found.e2e.curve[0] >= first_s + 4 * gap_s
    assert (found.ttft.count, found.tpot.count, found.itl.count) == (20, 20, 80)
    assert (found.input_tokens, found.output_tokens) == (160, 100)


def test_requests_leave_when_they_are_due_however_slow_the_server() -> None:
    """A closed loop would send one request at a time; here all are there before one has ended."""
    first_s = 2.0
    with scripted({"first_s": first_s}) as server:
        driven = drive(_even(10), num_requests=10, target=Target(server.url))
        log = server.log()
    came = [entry["came_s"] for entry in log]
    assert max(came) < min(entry["left_s"][0] for entry in log)
    assert driven.measured.lag and driven.measured.lag.p50 < LATE * first_s


def test_a_closed_loop_has_so_many_requests_open_and_no_more() -> None:
    """What each waits for is counted from when it was sent."""
    first_s, clients = 0.3, 4
    with scripted({"first_s": first_s}) as server:
        driven = drive(
            at_once(_even(20)), num_requests=20, target=Target(server.url), concurrency=clients
        )
        log = server.log()
    begun = [(entry["came_s"], 1) for entry in log]
    left = [(entry["left_s"][-1], -1) for entry in log]
    opened = np.cumsum([step for _, step in sorted(begun + left)])
    assert opened.max() == clients
    assert sorted(came for came, _ in begun)[clients] >= min(end for end, _ in left)
    found = driven.measured
    assert found.num_finished == 20 and found.ttft
    assert first_s <= found.ttft.p50 < 0.4 * found.duration_s  # of five rounds: not from the begin


def test_somebody_who_watches_sees_requests_leave_and_end() -> None:
    seen: list[tuple[int, int]] = []
    with scripted({"first_s": 0.15}) as server:
        drive(
            _even(20, gap_s=0.03),
            num_requests=20,
            target=Target(server.url),
            watch=lambda sent, finished: seen.append((sent, finished)),
        )
    assert seen[0] == (1, 0) and seen == sorted(seen) and len(seen) >= 3
    assert any(0 < finished < sent for sent, finished in seen)


def test_a_late_generator_is_told_and_its_lateness_counts() -> None:
    late_s = 0.8

    def late() -> Iterator[Arrival]:
        for at, arrival in enumerate(_even(10)):
            if at == 4:
                time.sleep(late_s)  # the generator does not get the processor
            yield arrival

    with scripted({"first_s": 0.01}) as server:
        found = drive(late(), num_requests=10, target=Target(server.url)).measured
    assert found.lag and found.ttft
    least_s = late_s - 4 * 0.02  # it fell asleep when the one before had left
    assert least_s < found.lag.largest < 2 * late_s
    assert found.ttft.largest > least_s


def test_every_fault_is_an_error_of_its_kind_and_none_hangs() -> None:
    faults = {
        "http 429": {"status": 429},
        "http 500": {"status": 500},
        "broken stream": {"end": "cut", "after": 2},
        "error event": {"end": "error", "after": 2},
        "bad event": {"end": "garbage", "after": 1},
        "timeout": {"end": "hang", "after": 2},
        "no output": {"after": 0},
    }
    with scripted(*faults.values(), {}) as server:
        target = Target(server.url, timeout_s=3.0)
        arrivals = _even(16, gap_s=0.05)
        found = drive(arrivals, num_requests=16, target=target).measured
    assert found.errors == dict.fromkeys(faults, 2)
    assert found.num_finished == found.num_good == 2
    assert found.said["error event"] == '{"message": "engine failed"}'
    assert found.good_share == 2 / 16


def test_a_stream_that_ends_without_done_is_broken() -> None:
    with scripted({"end": "silent", "after": 2}) as server:
        found = drive(_even(2), num_requests=2, target=Target(server.url)).measured
    assert found.errors == {"broken stream": 2}
    assert found.said == {"broken stream": "it ended without [DONE]"}


def test_a_server_that_is_not_there_is_told_before_anything_is_sent() -> None:
    with pytest.raises(RooflightError, match="names no model"):
        drive(_even(1), num_requests=1, target=Target("http://127.0.0.1:9"))
    with pytest.raises(RooflightError, match="does not answer: connect"):
        drive(_even(1), num_requests=1, target=Target("http://127.0.0.1:9", model="m"))


def test_the_time_limit_ends_a_run_and_counts_what_is_open_or_unsent() -> None:
    with scripted({"end": "hang", "after": 1}) as server:
        target = Target(server.url, time_limit_s=1.0)
        found = drive(_even(40, gap_s=0.05), num_requests=40, target=target).measured
    assert set(found.errors) == {"time limit", "not sent"}
    assert sum(found.errors.values()) == 40 and found.errors["time limit"] == found.num_sent
    assert found.good_share == 0 and found.ttft is None


@pytest.mark.parametrize(
    ("refuses", "takes_ids", "ignores_eos"),
    [((), True, True), (("ids",), False, True), (("ids", "ignore_eos"), False, False)],
)
def test_a_server_is_asked_in_the_way_that_it_understands(
    refuses: tuple[str, ...], takes_ids: bool, ignores_eos: bool
) -> None:
    with scripted(refuses=refuses) as server:
        target = Target(server.url, key="secret")
        driven = drive(_even(2), num_requests=2, target=target)
        entry = server.log()[0]
    assert (driven.dialect.takes_ids, driven.dialect.ignores_eos) == (takes_ids, ignores_eos)
    assert isinstance(entry["body"]["prompt"], list if takes_ids else str)
    assert ("ignore_eos" in entry["body"]) == ignores_eos
    assert entry["headers"]["authorization"] == "Bearer secret"
    assert driven.measured.num_finished == 2


def test_a_server_that_refuses_all_prompts_is_a_usage_error() -> None:
    with scripted({"status": 400}) as server:
        drive(_even(1), num_requests=1, target=Target(server.url))  # its first answer is good
        with pytest.raises(UsageError, match="refuses every kind of prompt"):
            drive(_even(1), num_requests=1, target=Target(server.url))


def test_prompts_share_exactly_what_the_traffic_says() -> None:
    traffic = RandomTraffic(
        1.0, Lengths("uniform", 30, low=20, high=40), Lengths("fixed", 2), 40, seed=3
    )
    arrivals = list(with_prefixes(at_once(traffic.arrivals()), prefixes=3, tokens=25, seed=3))
    with scripted() as server:
        drive(arrivals, num_requests=40, target=Target(server.url), seed=3)
        prompts = [entry["body"]["prompt"] for entry in server.log()]
    assert sorted(map(len, prompts)) == sorted(a.input_tokens for a in arrivals)
    heads = {tuple(prompt[:25]) for prompt in prompts if len(prompt) > 25}
    assert len(heads) == 3
    assert len({tuple(prompt) for prompt in prompts}) == 40  # the rest of each is its own


def test_a_server_without_usage_is_counted_by_chunks() -> None:
    with scripted({"usage": False}) as server:
        found = drive(_even(3, outputs=6), num_requests=3, target=Target(server.url)).measured
    assert (found.input_tokens, found.output_tokens) == (24, 18)


def test_tpot_counts_tokens_and_itl_counts_chunks() -> None:
    with scripted({"gap_s": 0.3, "tokens_a_chunk": 3}) as server:
        found = drive(_even(4, outputs=9), num_requests=4, target=Target(server.url)).measured
    assert found.itl and found.tpot and found.itl.count == 4 * 2
    assert found.itl.p50 == pytest.approx(0.3, rel=LATE)
    assert found.tpot.mean == pytest.approx(found.itl.mean * 2 / 8)  # two gaps, nine tokens


def test_tokens_without_a_text_came_when_the_end_was_told() -> None:
    with scripted({"gap_s": 0.05, "is_mute": True}) as server:
        found = drive(_even(3, outputs=4), num_requests=3, target=Target(server.url)).measured
    assert (found.num_finished, found.output_tokens, found.errors) == (3, 12, {})
    assert found.ttft and found.e2e and found.ttft.p50 == found.e2e.p50 >= 0.15


def test_a_last_token_without_a_text_came_with_the_end() -> None:
    """vLLM sends it so where the token is special, or half a character."""
    with scripted({"gap_s": 0.3, "ends_mute": True}) as server:
        found = drive(_even(3, outputs=4), num_requests=3, target=Target(server.url)).measured
    assert found.tpot and found.itl and found.e2e and found.output_tokens == 12
    assert found.e2e.curve[0] >= 0.9 and found.itl.count == 9
    assert found.tpot.mean == pytest.approx(found.itl.mean)  # three gaps, four tokens


def test_answers_that_end_early_are_counted_and_told() -> None:
    with scripted({"after": 3}, {}) as server:
        found = drive(_even(6), num_requests=6, target=Target(server.url)).measured
    assert (found.num_finished, found.num_short, found.output_tokens) == (6, 3, 21)
    assert "3 answers have fewer tokens than asked" in found.faults


def test_goodput_counts_only_what_was_promised() -> None:
    with scripted({"first_s": 2.0}, {}) as server:
        found = drive(
            _even(10), num_requests=10, target=Target(server.url), slo=Slo(ttft_s=1.5)
        ).measured
    assert found.num_finished == 10 and found.num_good == 5
    assert found.goodput == pytest.approx(5 / found.duration_s)

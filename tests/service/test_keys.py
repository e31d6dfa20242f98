"""Keys, allowances and the fair queue, on a clock of our own."""

import hmac
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rooflight.errors import RooflightError
from rooflight.serve.server.fairness import FairQueue
from rooflight.serve.server.keys import Allowance, Bucket, Key, find_key, make_key, read_keys
from rooflight.serve.server.problem import ApiError

SECRET = "sk-0123456789abcdef"
ALICE = make_key("alice", SECRET)
BOB = make_key("bob", "sk-fedcba9876543210")


def key_file(folder: Path, text: str, mode: int = 0o600) -> Path:
    path = folder / "keys"
    path.write_text(text)
    path.chmod(mode)
    return path


def test_a_key_is_found_by_its_header_and_by_nothing_else() -> None:
    keys = (ALICE, BOB)
    assert find_key(keys, f"Bearer {SECRET}") is ALICE
    assert find_key(keys, f"bearer  {SECRET} ") is ALICE
    for wrong in ("", "Bearer", f"Basic {SECRET}", SECRET, f"Bearer {SECRET}x", "Bearer \udcff"):
        assert find_key(keys, wrong) is None


def test_every_key_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[bytes] = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append(one)
        return one == other

    monkeypatch.setattr(hmac, "compare_digest", compare)
    find_key((ALICE, BOB), f"Bearer {SECRET}")
    assert compared == [ALICE.digest, BOB.digest]  # also after the right one


def test_a_key_is_not_kept_and_its_salt_says_nothing_of_it() -> None:
    assert SECRET not in repr(ALICE) and SECRET.encode() not in ALICE.digest
    assert ALICE.salt != BOB.salt and ALICE.digest not in ALICE.salt


def test_a_key_file_is_read_with_its_limits(tmp_path: Path) -> None:
    text = f"# ours\n\nalice {SECRET} requests=60 concurrent=2\nbob sk-fedcba9876543210\n"
    alice, bob = read_keys(key_file(tmp_path, text))
    assert (alice.name, alice.requests, alice.tokens, alice.concurrent) == (
        "alice",
        60,
        math.inf,
        2,
    )
    assert bob == BOB


@pytest.mark.parametrize(
    "text",
    (
        "",
        "alice",
        "alice short",
        f"alice {SECRET} speed=5",
        f"alice {SECRET} requests=0",
        f"alice {SECRET} requests=-1",
        f"a/b {SECRET}",
        f"alice {SECRET}\nalice {SECRET}",
    ),
)
def test_a_wrong_key_file_is_refused_without_quoting_a_key(tmp_path: Path, text: str) -> None:
    with pytest.raises(RooflightError) as caught:
        read_keys(key_file(tmp_path, text))
    assert SECRET not in caught.value.render() and caught.value.hint


def test_a_key_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RooflightError, match="others"):
        read_keys(key_file(tmp_path, f"alice {SECRET}", mode=0o644))
    with pytest.raises(RooflightError, match="cannot read"):
        read_keys(tmp_path / "none")


@given(st.lists(st.tuples(st.floats(0, 30), st.integers(1, 20)), max_size=30))
def test_a_bucket_never_gives_more_than_its_rate(asks: list[tuple[float, int]]) -> None:
    now, taken = 0.0, 0
    bucket = Bucket(60, clock=lambda: now)
    for wait, amount in asks:
        now += wait
        if bucket.wait(amount) == 0:
            bucket.take(amount)
            taken += amount
    assert taken <= 60 + now * 1.0 + 1e-6


def test_a_bucket_says_when_to_come_again() -> None:
    now = 0.0
    bucket = Bucket(60, clock=lambda: now)
    bucket.take(60)
    wait = bucket.wait(10)
    assert wait == pytest.approx(10)
    now += wait + 1e-9
    assert bucket.wait(10) == 0
    assert bucket.wait(61) == math.inf


def test_an_allowance_counts_requests_tokens_and_those_at_once() -> None:
    now = 0.0
    key = Key("k", b"x", requests=3, tokens=100, concurrent=2)
    allowance = Allowance(key, clock=lambda: now)
    allowance.enter()
    allowance.enter()
    with pytest.raises(ApiError) as caught:
        allowance.enter()
    assert (caught.value.status, caught.value.code) == (429, "concurrent_limit")
    allowance.leave()
    allowance.enter()
    allowance.leave()
    with pytest.raises(ApiError) as caught:
        allowance.enter()
    assert caught.value.code == "requests_limit" and caught.value.headers == {"Retry-After": "20"}
    allowance.spend(80)
    with pytest.raises(ApiError) as caught:
        allowance.spend(40)
    assert caught.value.code == "tokens_limit" and caught.value.headers == {"Retry-After": "12"}
    allowance.give_back(20)
    allowance.spend(40)
    with pytest.raises(ApiError) as caught:
        allowance.spend(101)
    assert caught.value.status == 400  # never possible


def test_a_flood_waits_behind_those_who_ask_little() -> None:
    queue = FairQueue(100, 1000)
    flood = [queue.place("flood", 10) for _ in range(100)]
    queue.started(flood[0])
    assert queue.place("modest", 10) <= flood[1]


def test_one_that_floods_gets_half_of_the_queue_and_leaves_room_for_others() -> None:
    queue = FairQueue(100, 1000)
    assert sum(queue.enter("flood", 5) for _ in range(50)) == 10
    assert sum(queue.enter("second", 5) for _ in range(50)) == 5  # half of what is left
    assert queue.enter("late", 5)
    queue.leave("flood", 10)
    assert not queue.enter("flood", 5) and queue.enter("second", 5)


def test_one_that_floods_with_small_requests_gets_half_of_the_places() -> None:
    queue = FairQueue(10**9, 16)
    assert sum(queue.enter("flood", 1) for _ in range(50)) == 8
    assert sum(queue.enter("second", 1) for _ in range(50)) == 4
    assert queue.enter("late", 1) and not queue.enter("late", 1, requests=4)
    queue.leave("flood", 1)
    queue.leave("flood", 1)
    assert not queue.enter("flood", 1) and queue.enter("second", 1)


def test_the_first_of_a_key_is_never_refused_here() -> None:
    queue = FairQueue(100, 1000)
    assert queue.enter("one", 1000) and queue.enter("two", 1000)
    assert not queue.enter("one", 1)


def test_work_that_is_given_back_does_not_count() -> None:
    queue = FairQueue(100, 1000)
    assert queue.place("a", 100) == 0
    queue.give_back("a", 90)
    assert queue.place("a", 5) == 10


@given(st.lists(st.sampled_from("ab"), min_size=40, max_size=200))
def test_two_keys_that_always_wait_get_the_same(order: list[str]) -> None:
    """Whoever asks in whatever order: of the first to run, each has about half."""
    queue = FairQueue(100, 1000)
    waiting = [(queue.place(key, 10), i, key) for i, key in enumerate(order)]
    both = 2 * min(order.count("a"), order.count("b"))
    first = [key for _, _, key in sorted(waiting)[:both]]
    assert abs(first.count("a") - first.count("b")) <= 2

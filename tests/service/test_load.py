"""Many streams at once, and more than there is room for."""

import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from .load import resident_kb, run_load
from .server_process import Server, start_server

CLIENTS = 10


def test_a_hundred_streams_are_served_evenly(server: Server) -> None:
    run_load(server, lambda load: load.hold(100, 0.5), clients=CLIENTS, tokens=8)
    before = resident_kb(server)
    tally = run_load(server, lambda load: load.hold(100, 2), clients=CLIENTS, tokens=8)
    assert tally.errors == [] and set(tally.statuses) == {200} and tally.finished >= 100
    assert max(tally.tokens.values()) <= 2 * min(tally.tokens.values())
    assert resident_kb(server) - before < 10_000
    assert server.client.metric("rooflight:open_requests") == 0


@pytest.fixture(scope="module")
def small(folder: Path) -> Iterator[Server]:
    """Four run, eight wait."""
    with start_server(folder, "--max-waiting", "8", name="small") as server:
        yield server


@pytest.mark.full
def test_three_times_too_much_is_shed_and_the_rest_is_as_fast_as_promised(small: Server) -> None:
    alone = run_load(small, lambda load: load.hold(4, 5), clients=CLIENTS, tokens=32)
    capacity = alone.finished / 5
    tally = run_load(small, lambda load: load.arrive(3 * capacity, 20), clients=CLIENTS, tokens=32)
    offered = sum(tally.statuses.values())
    assert set(tally.statuses) == {200, 429} and tally.errors == []
    assert tally.statuses[429] > offered / 3
    assert tally.finished > 0.6 * capacity * 20  # it goes on with what it has taken
    wait = 12 / capacity  # four run and eight wait: who is taken in is served after these
    assert statistics.median(tally.ttft) < 1.5 * wait
    assert statistics.quantiles(tally.ttft, n=20)[-1] < 2 * wait + 1  # the machine has others
    assert small.client.get("/health").status == 200


@pytest.fixture(scope="module")
def large(folder: Path) -> Iterator[Server]:
    sizes = ("--rows", "256", "--step-tokens", "512", "--max-tokens", "128", "--max-waiting", "4Ki")
    with start_server(folder, *sizes, name="large") as server:
        yield server


@pytest.mark.full
def test_two_thousand_streams_are_held_for_ten_minutes(large: Server) -> None:
    run_load(large, lambda load: load.hold(2000, 60), clients=CLIENTS, tokens=32)
    before = resident_kb(large)
    start = time.monotonic()
    tally = run_load(large, lambda load: load.hold(2000, 600), clients=CLIENTS, tokens=32)
    seconds = time.monotonic() - start
    print(f"{tally.finished} streams, {sum(tally.tokens.values()) / seconds:.0f} events/s")
    print(f"longest gap {tally.longest_gap:.1f} s, {resident_kb(large) - before:+} kB")
    assert tally.errors == [] and set(tally.statuses) == {200}
    assert tally.longest_gap < 600  # the deadline
    assert max(tally.tokens.values()) <= 2 * min(tally.tokens.values())
    assert resident_kb(large) < 1.1 * before

"""The router in front of real processes: affinity, load, retries, deaths, drains."""

import asyncio
import http.client
import json
import random
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

import aiohttp
import pytest

from ..listeners import listeners
from .fleet_of_processes import Process, ask, ask_all, replica, routed, until

PREFIX = "shared system prompt " * 120  # more than the bytes of a key


@pytest.fixture(scope="module")
def started() -> Generator[tuple[Process, list[Process]]]:
    """Three replicas behind a router, for the tests that break none of them."""
    with routed(3) as (router, replicas):
        yield router, replicas


@pytest.fixture
def fleet(started: tuple[Process, list[Process]]) -> tuple[Process, list[Process]]:
    """The same, as if new but for its counts and logs."""
    router, replicas = started
    for each in replicas:
        each.behave()
    ups = [f'up{{replica="{each.url}"}}' for each in replicas]
    until(lambda: all(_count(router.url, up) == 1 for up in ups))
    return started


def _prompts(count: int, prefix: str = PREFIX) -> list[str]:
    return [f"{prefix}request {at:04}" for at in range(count)]


def _scrape(url: str) -> str:
    with urllib.request.urlopen(f"{url}/metrics", timeout=300) as response:
        return response.read().decode()


def test_every_scraper_can_read_the_metrics(fleet: tuple[Process, list[Process]]) -> None:
    router, replicas = fleet
    ask_all(router.url, _prompts(2))
    text = _scrape(router.url)
    kinds = dict(re.findall(r"^# TYPE (\S+) (counter|gauge)$", text, re.MULTILINE))
    samples = re.findall(r'^(\w+)(?:\{\w+="[^"]*"\})? \d+$', text, re.MULTILINE)
    assert len(text.splitlines()) == 2 * len(kinds) + len(samples)
    assert set(samples) <= set(kinds) and samples == sorted(samples, key=list(kinds).index)
    assert samples.count("rooflight_router_up") == len(replicas)


def _count(url: str, name: str) -> int:
    found = re.search(rf"^rooflight_router_{re.escape(name)} (\d+)$", _scrape(url), re.MULTILINE)
    return int(found[1]) if found else 0


def test_a_shared_prefix_stays_at_one_replica_until_its_bound_then_spills() -> None:
    with routed(3, "--bound", "4") as (router, replicas):
        alone = ask_all(router.url, _prompts(4))
        for each in replicas:
            each.behave(holds=True)
        with ThreadPoolExecutor() as pool:
            asked = pool.submit(ask_all, router.url, _prompts(6))
            until(lambda: sum(each.num_open() for each in replicas) == 6)
            for each in replicas:
                each.behave()
            together = Counter(got.who for got in asked.result())
        owner = alone[0].who
        assert {got.who for got in alone} == {owner}
        assert together[owner] == 4 and len(together) == 2
        assert _count(router.url, "spilled_total") == 2
        others = ask_all(router.url, [f"{at} {PREFIX}" for at in range(24)])
        assert {got.who for got in others} == {"r0", "r1", "r2"}
        assert all(got.end == "done" for got in (*alone, *others))


def test_tokens_pass_as_they_come_and_headers_go_through(
    fleet: tuple[Process, list[Process]],
) -> None:
    router, replicas = fleet
    for each in replicas:
        each.behave(tokens=6, gap_s=0.2)
    (got,) = ask_all(router.url, ["hello"], key="a key of the replica's own")
    assert got.texts == tuple(f"{got.who}:hello:{at} " for at in range(6))
    assert got.last_s - got.first_s > 0.5 and got.end == "done"  # not all in the end
    entry = replicas[int(got.who[1:])].log()[-1]
    assert entry["authorization"] == "Bearer a key of the replica's own"
    with urllib.request.urlopen(f"{router.url}/ready", timeout=300) as response:
        assert response.status == 200


def test_a_replica_that_dies_mid_load_takes_no_request_down_silently() -> None:
    """Each of 60 requests ends in its whole answer or an error, and none in two answers."""
    with routed(3, "--bound", "2") as (router, replicas):
        for each in replicas:
            each.behave(tokens=8, gap_s=0.05)
        replicas[1].behave(tokens=8, holds=True)
        prompts = [f"{at % 12} {PREFIX} {at:04}" for at in range(60)]

        def kill() -> None:
            until(lambda: replicas[1].num_open() >= 2)
            replicas[1].signal(signal.SIGKILL)

        with ThreadPoolExecutor() as pool:
            killed = pool.submit(kill)
            got = ask_all(router.url, prompts, gap_s=0.012)
            killed.result()
        ends = Counter(each.end for each in got)
        broken = [each for each in got if each.end != "done"]
        assert broken and len(broken) < 30, ends  # those that it had in its hands
        assert {each.who for each in broken} <= {"r1", ""}
        for prompt, each in zip(prompts, got, strict=True):
            whole = [f"{each.who}:{prompt[-12:]}:{at} " for at in range(8)]
            assert list(each.texts) == whole[: len(each.texts)]
            if each.end == "done":
                assert len(each.texts) == 8
            else:
                assert "replica_broke" in each.end
        seen = Counter(e["prompt"] for at in (0, 2) for e in replicas[at].log())
        assert max(seen.values()) == 1
        assert all(each.end == "done" for each in ask_all(router.url, prompts[:24]))
        with replica("r1", port=int(replicas[1].url.rpartition(":")[2])):
            until(lambda: 'up{replica="' + replicas[1].url + '"} 1' in _scrape(router.url))
            again = ask_all(router.url, prompts[:24])
            its_own = [p for p, got in zip(prompts, again, strict=False) if got.who == "r1"]
            assert its_own
        before = _count(router.url, 'retries_total{reason="connect"}')
        for _ in range(6):  # it is gone again
            assert ask_all(router.url, its_own[:1])[0].end == "done"
        assert _count(router.url, 'retries_total{reason="connect"}') - before <= 2


def test_a_request_in_the_hands_of_a_replica_that_hangs_up_is_not_handed_on(
    fleet: tuple[Process, list[Process]],
) -> None:
    router, replicas = fleet
    for each in replicas:
        each.behave(hangs_up=True)
    (got,) = ask_all(router.url, ["poison"])
    assert got.status == 502 and "replica_broke" in got.end
    prompts = [entry["prompt"] for each in replicas for entry in each.log()]
    assert prompts.count("poison") == 1


@pytest.mark.parametrize("how", ["hangs_up", "breaks"])
def test_a_replica_that_breaks_off_and_is_ready_still_serves_others(
    how: str, fleet: tuple[Process, list[Process]]
) -> None:
    """A reader that does not read has it break off: no other client pays for that."""
    router, replicas = fleet
    for _ in range(5):
        for each in replicas:
            each.behave(**{how: True})
        prompts = [f"{how} {at} {PREFIX}" for at in range(12)]
        assert all("replica_broke" in got.end for got in ask_all(router.url, prompts))
        for each in replicas:
            each.behave()
        assert {got.end for got in ask_all(router.url, prompts)} == {"done"}


def test_a_full_replica_sends_requests_to_a_free_one_and_all_full_say_when(
    fleet: tuple[Process, list[Process]],
) -> None:
    router, replicas = fleet
    owner = int(ask_all(router.url, _prompts(1))[0].who[1:])
    replicas[owner].behave(status=429)
    assert all(got.end == "done" for got in ask_all(router.url, _prompts(5)))
    assert _count(router.url, 'retries_total{reason="429"}') == 5
    for wait, each in zip((9, 3, 5), replicas, strict=True):
        each.behave(status=429, retry_after=wait)
    (got,) = ask_all(router.url, _prompts(1))
    assert got.status == 429 and dict(got.headers)["Retry-After"] == "3"
    for each in replicas:
        each.behave(status=503, retry_after=2)
    (got,) = ask_all(router.url, _prompts(1))
    assert got.status == 503 and dict(got.headers)["Retry-After"] == "2"


def test_a_replica_that_is_not_ready_or_has_a_queue_gets_less() -> None:
    with routed(2) as (router, replicas):
        owner = int(ask_all(router.url, _prompts(1))[0].who[1:])
        replicas[owner].behave(waiting=50)
        waits = f'waiting{{replica="{replicas[owner].url}"}}'
        until(lambda: _count(router.url, waits) == 50)
        assert ask_all(router.url, _prompts(1))[0].who == f"r{1 - owner}"
        replicas[1 - owner].behave(is_ready=False)
        until(lambda: _count(router.url, f'up{{replica="{replicas[1 - owner].url}"}}') == 0)
        replicas[owner].behave()
        assert ask_all(router.url, _prompts(1))[0].who == f"r{owner}"
        replicas[owner].behave(is_ready=False)
        until(lambda: _count(router.url, f'up{{replica="{replicas[owner].url}"}}') == 0)
        (got,) = ask_all(router.url, _prompts(1))
        assert got.status == 503 and "no_replica" in got.end
        assert not _is_ready(router.url)


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/ready", timeout=300) as response:
            return response.status == 200
    except urllib.error.HTTPError as error:
        assert error.code == 503
        return False


@pytest.mark.parametrize("is_stream", [True, False])
def test_a_client_that_leaves_takes_its_request_with_it(
    is_stream: bool, fleet: tuple[Process, list[Process]]
) -> None:
    router, replicas = fleet
    for each in replicas:
        each.behave(holds=True)
    body = {"prompt": f"leaves {is_stream}", "stream": is_stream}

    def ends() -> list[str]:
        entries = [entry for each in replicas for entry in each.log()]
        return [entry["end"] for entry in entries if entry["prompt"] == body["prompt"]]

    async def ask_for_it() -> None:
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{router.url}/v1/completions", json=body) as response,
        ):
            await response.read()

    async def leave() -> None:
        asked = asyncio.create_task(ask_for_it())
        await asyncio.to_thread(until, lambda: ends() == ["open"])
        asked.cancel()
        await asyncio.wait([asked])

    asyncio.run(leave())
    until(lambda: ends() == ["client gone"])
    flights = [f'in_flight{{replica="{each.url}"}}' for each in replicas]
    until(lambda: sum(_count(router.url, flight) for flight in flights) == 0)


def test_sigterm_lets_streams_end_and_refuses_new_ones() -> None:
    with routed(1) as (router, replicas):
        replicas[0].behave(holds=True)

        async def run() -> tuple[str, int]:
            async with aiohttp.ClientSession() as session:
                open_stream = asyncio.create_task(ask(session, router.url, "early"))
                await asyncio.to_thread(until, lambda: replicas[0].num_open() == 1)
                router.signal(signal.SIGTERM)
                await asyncio.to_thread(until, lambda: not _is_ready(router.url))
                late = await ask(session, router.url, "late")
                await asyncio.to_thread(replicas[0].behave)
                return (await open_stream).end, late.status

        with _half_sent(router.url) as half:
            assert asyncio.run(run()) == ("done", 503)
            assert b" 503 " in half.recv(4096).split(b"\r\n")[0]
        assert router.popen.wait(timeout=300) == 0


def _half_sent(url: str) -> socket.socket:
    """A body of which the router waits for the rest."""
    sock = socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=300)
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n"
    sock.sendall(f"{head}Expect: 100-continue\r\n\r\n{{".encode())
    assert sock.recv(4096).startswith(b"HTTP/1.1 100")  # it reads
    return sock


def test_a_stream_that_outlasts_the_drain_is_cut_off_with_an_error() -> None:
    with routed(1, "--drain", "300ms") as (router, replicas):
        replicas[0].behave(holds=True)
        with ThreadPoolExecutor() as pool:
            asked = pool.submit(ask_all, router.url, ["endless"])
            until(lambda: replicas[0].num_open() == 1)
            router.signal(signal.SIGTERM)
            (got,) = asked.result()
        assert got.end == "replica_broke"
        assert router.popen.wait(timeout=300) == 1


def test_keys_are_asked_for_and_bodies_have_bounds() -> None:
    secret = "a-secret-of-the-router"
    with routed(1, env={"ROOFLIGHT_API_KEY": secret}) as (router, replicas):
        assert ask_all(router.url, ["x"])[0].status == 401
        assert ask_all(router.url, ["x"], key=secret)[0].end == "done"
        assert ask_all(router.url, ["x" * (17 << 20)], key=secret)[0].status == 413
        for path, headers, status in (
            ("/v1/completions", {"Content-Encoding": "gzip"}, 415),
            ("/behave", {}, 404),
            ("/v1/../behave", {}, 404),
        ):
            headers["Authorization"] = f"Bearer {secret}"
            request = urllib.request.Request(f"{router.url}{path}", b"{}", headers)
            with pytest.raises(urllib.error.HTTPError, match=str(status)):
                urllib.request.urlopen(request, timeout=300)
        assert len(replicas[0].log()) == 1
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(f"{router.url}/metrics", timeout=300)
    with routed(1, "--open-metrics", env={"ROOFLIGHT_API_KEY": secret}) as (router, _):
        assert b"up" in urllib.request.urlopen(f"{router.url}/metrics", timeout=300).read()
        assert ask_all(router.url, ["x"])[0].status == 401


def test_a_router_listens_where_it_says_and_nowhere_else(
    fleet: tuple[Process, list[Process]],
) -> None:
    router = fleet[0]
    port = int(router.url.rpartition(":")[2])
    assert listeners(router.popen.pid) == {("127.0.0.1", port)}


def test_a_request_begins_at_one_replica_at_most(fleet: tuple[Process, list[Process]]) -> None:
    """Whatever replicas do with it: a history of all of them, checked prompt by prompt."""
    router, replicas = fleet
    rng = random.Random(7)
    ways: list[dict[str, object]] = [{}, {"hangs_up": True}, {"status": 500}, {"status": 429}]
    for round in range(12):
        for each in replicas:
            each.behave(**rng.choice(ways))
        prompts = [f"history {round} {at}" for at in range(8)]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(partial(_ask_quietly, router.url), prompts))
    began = Counter(
        entry["prompt"] for each in replicas for entry in each.log() if entry["end"] != "refused"
    )
    found = {prompt: count for prompt, count in began.items() if prompt.startswith("history ")}
    assert found and max(found.values()) == 1, found


def _ask_quietly(url: str, prompt: str) -> None:
    body = json.dumps({"model": "m", "prompt": prompt}).encode()
    request = urllib.request.Request(
        f"{url}/v1/completions", body, {"Content-Type": "application/json"}
    )
    with suppress(OSError, http.client.HTTPException):
        urllib.request.urlopen(request, timeout=300).read()


def test_an_answer_comes_as_it_is_or_not_at_all(fleet: tuple[Process, list[Process]]) -> None:
    """Replicas are asked for plain bytes; one that compresses all the same is not passed on."""
    router, replicas = fleet
    for each in replicas:
        each.behave(compresses=True)
    body = json.dumps({"model": "m", "prompt": "plain"}).encode()
    headers = {"Content-Type": "application/json", "Accept-Encoding": "gzip"}
    request = urllib.request.Request(f"{router.url}/v1/completions", body, headers)
    with pytest.raises(urllib.error.HTTPError, match="502") as caught:
        urllib.request.urlopen(request, timeout=300)
    assert b"replica_encoding" in caught.value.read()
    assert {e["encoding"] for each in replicas for e in each.log() if e["prompt"] == "plain"} == {
        "identity"
    }


def test_without_keys_a_page_of_another_name_gets_no_answer(
    fleet: tuple[Process, list[Process]],
) -> None:
    for path in ("/metrics", "/health", "/v1/models", "/v1/models/tiny"):
        request = urllib.request.Request(fleet[0].url + path, headers={"Host": "evil.example"})
        with pytest.raises(urllib.error.HTTPError, match="421"):
            urllib.request.urlopen(request, timeout=300)


def test_other_machines_need_a_key() -> None:
    words = ["-m", "rooflight", "route", "--replica", "http://127.0.0.1:9", "--host", "0.0.0.0"]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=300)
    assert done.returncode == 2 and "no key is asked for" in done.stderr

"""Honest clients beside a hostile one: as fast as beside an honest one; and ends at any moment."""

import asyncio
import random
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean

import pytest

from ..dated_figure import today, write_figure
from ..router.fleet_of_processes import process
from .hostile_load import (
    HONEST,
    HOSTILE,
    KEYS,
    NO_ANSWER,
    QUARTER,
    ROUTER,
    SERVER,
    WHOLE,
    Asked,
    Honest,
    Shift,
    Watched,
    neighbour,
    percentile,
    running,
    session,
    watch,
    write_keys,
)
from .server_process import launch, start_server, wait_until_ready

# In turns: load from outside hits both.
EVERYDAY: Sequence[Shift] = 2 * ((HONEST, 5.0), (HOSTILE, 6.0))
HALF_AN_HOUR: Sequence[Shift] = 6 * ((HONEST, 60.0), (HOSTILE, 240.0))
MINUTE = 60.0
DRAIN_S = 20.0
END_S = 20.0  # more: what is cut off has to be told, and the last step made
LATER = ("503 draining, later", "503 warming_up, later", "429 overloaded, later")


def check(watched: Watched, of: Callable[[list[float]], float], *, slower: float) -> None:
    """No answer of the honest client is an error of the server, and none is late."""
    assert set(watched.statuses()) == {200} and watched.errors() == {}
    for way in (SERVER, ROUTER):
        for first in (True, False):
            late = {kind: of(watched.times(way, kind, first=first)) for kind in (HONEST, HOSTILE)}
            assert late[HOSTILE] <= slower * late[HONEST], (way, first, late)


@pytest.mark.alone
def test_a_hostile_neighbour_is_no_worse_than_an_honest_one(folder: Path) -> None:
    with running(folder) as place:
        before = place.resident()
        watched = watch(place, EVERYDAY, QUARTER)
        # Few requests: their median is chance as well. A queue without shares is 5 times slower.
        check(watched, mean, slower=4)
        after = place.resident()
        assert all(after[name] - before[name] < 200e6 for name in (SERVER, ROUTER))


@pytest.mark.full
def test_half_an_hour_beside_a_hostile_neighbour(folder: Path) -> None:
    with running(folder) as place:
        watched = watch(place, HALF_AN_HOUR)
    text = figures(watched)
    print(text)
    write_figure("security.md", "hostile load", text)
    check(watched, partial(percentile, share=0.99), slower=2)
    for name in (SERVER, ROUTER):
        early = watched.bytes_of(name, 5 * MINUTE, 10 * MINUTE)
        assert watched.bytes_of(name, 25 * MINUTE, 30 * MINUTE) <= 1.05 * early
        assert percentile(watched.lag(name, HOSTILE), 0.99) < 0.1


def figures(watched: Watched) -> str:
    """A table for the docs."""
    head = ("at", "beside", "requests", "first p50", "first p99", "whole p50", "whole p99")
    rows = [[*head, "lag p99", "MB, minutes 5 to 10", "MB, last 5"]]
    rows.append(["---", "---", *("---:" for _ in rows[0][2:])])
    for way in (SERVER, ROUTER):
        memory = [watched.bytes_of(way, m * MINUTE, (m + 5) * MINUTE) / 1e6 for m in (5, 25)]
        for kind in (HONEST, HOSTILE):
            firsts, wholes = (watched.times(way, kind, first=first) for first in (True, False))
            times = [percentile(v, share) for v in (firsts, wholes) for share in (0.5, 0.99)]
            times.append(percentile(watched.lag(way, kind), 0.99))
            words = [f"{1e3 * seconds:.0f} ms" for seconds in times]
            rows.append([way, kind, f"{len(wholes):,}", *words, *(f"{m:.0f}" for m in memory)])
    seen = watched.neighbours[HOSTILE]
    told = f"{today()}, 2 cores; the hostile neighbour did {seen.total():,} things."
    return "\n".join(["| " + " | ".join(row) + " |" for row in rows] + ["", told])


# Ends


@dataclass(frozen=True)
class Try:
    """Who is beside when a process is told to end, how large, and after how long."""

    number: int
    kind: str
    share: int
    moment_s: float

    @property
    def drain_s(self) -> float:
        """Everyday the hostile ones are cut off soon, for they ask for much."""
        return DRAIN_S if self.kind == HONEST or self.share == WHOLE else 2.0


def tries(count: int, share: int) -> list[Try]:
    rng = random.Random(count)
    kinds = (HOSTILE, HONEST)
    return [Try(at, kinds[at % 2], share, rng.uniform(0, 4 / share)) for at in range(count)]


@dataclass(frozen=True)
class Ended:
    """How a process ended that was told to."""

    code: int
    seconds: float
    asked: list[Asked]
    told: float  # when


async def end_under_load(popen: subprocess.Popen[str], way: str, port: int, attempt: Try) -> Ended:
    kind = attempt.kind
    async with session() as opened, neighbour(kind, attempt.share, [port]):
        honest, tasks = Honest(opened, {way: port}), list[asyncio.Task[Asked]]()

        async def ask() -> None:
            while True:
                tasks.append(asyncio.create_task(honest.ask(way, kind)))
                await asyncio.sleep(0.1)

        asking = asyncio.create_task(ask())
        await asyncio.sleep(attempt.moment_s)
        popen.send_signal(signal.SIGTERM)
        told = time.monotonic()
        while (code := popen.poll()) is None and time.monotonic() - told < attempt.drain_s + END_S:
            await asyncio.sleep(0.01)
        seconds = time.monotonic() - told
        asking.cancel()
        assert code is not None, f"still there after {seconds:.0f} s"
        return Ended(code, seconds, list(await asyncio.gather(*tasks)), told)


def check_end(ended: Ended, attempt: Try) -> None:
    """What was asked before is answered or told to come again; after it nobody may be there."""
    print(attempt, ended.code, f"{ended.seconds:.2f} s", len(ended.asked))
    assert ended.code == 0 or (ended.code == 1 and attempt.kind == HOSTILE)
    for one in ended.asked:
        is_told = one.is_whole or one.error in LATER
        assert is_told or (one.sent >= ended.told and one.status == NO_ANSWER), one


def end_servers(folder: Path, attempts: Sequence[Try]) -> None:
    """Every fifth while it warms up, the others at any moment of a load."""
    keys = ("--keys", str(write_keys(folder)))
    for attempt in attempts:
        drain = ("--drain", f"{attempt.drain_s:g}s")
        server = launch(folder, *keys, *drain, name=f"ended{attempt.number}")
        try:
            if attempt.number % 5 != 2:
                wait_until_ready(server)
            ending = end_under_load(server.process, SERVER, server.said["port"], attempt)
            check_end(asyncio.run(ending), attempt)
        finally:
            server.process.kill()
            server.process.communicate()


def end_routers(folder: Path, attempts: Sequence[Try]) -> None:
    keys = ("--keys", str(write_keys(folder)))
    with start_server(folder, *keys, name="behind") as server:
        url = f"http://127.0.0.1:{server.said['port']}"
        flags = ("--replica", url, "--port", "0", *keys)
        for attempt in attempts:
            drain, env = f"{attempt.drain_s:g}s", {"ROOFLIGHT_API_KEY": KEYS["probe"]}
            words = ("-m", "rooflight", "route", *flags, "--drain", drain)
            with process(*words, env=env) as router:
                port = int(router.url.rpartition(":")[2])
                ending = end_under_load(router.popen, ROUTER, port, attempt)
                check_end(asyncio.run(ending), attempt)


def test_sigterm_at_any_moment_ends_clean_within_the_drain_time(folder: Path) -> None:
    end_servers(folder, tries(3, QUARTER))


def test_a_router_ends_clean_within_the_drain_time_as_well(folder: Path) -> None:
    end_routers(folder, tries(3, QUARTER))


@pytest.mark.full
def test_fifty_sigterms_at_any_moment_end_clean_within_the_drain_time(folder: Path) -> None:
    end_servers(folder, tries(50, WHOLE))


@pytest.mark.full
def test_fifty_routers_end_clean_within_the_drain_time(folder: Path) -> None:
    end_routers(folder, tries(50, WHOLE))

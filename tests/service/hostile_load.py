"""An honest client at a steady rate beside a neighbour, at a server and at a router before it.

Shifts of an honest neighbour and of a hostile one take turns, so that what else the machine does
falls on both. The honest client does not wait for its answers before it asks again.
"""

import asyncio
import json
import math
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncGenerator, Generator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean

import aiohttp

from ..listeners import family
from ..router.fleet_of_processes import Process, process, until
from .client import MODEL
from .server_process import Server, start_server

NEIGHBOUR = Path(__file__).with_name("neighbour.py")
KEYS = {name: f"sk-{name}-0123456789abcdef" for name in ("honest", "neighbour", "probe")}
RATE = 4.0  # requests per second, of the honest client
TOKENS = 12
SETTLE_S = 2.0  # of a shift, for the neighbour to come; not counted
PROBE_EVERY_S = 0.25
WEIGH_EVERY_S = 2.0
HONEST, HOSTILE = "honest", "hostile"
SERVER, ROUTER = "server", "router"
NO_ANSWER = 0


@dataclass(frozen=True)
class Place:
    """A server and a router before it, both with keys."""

    server: Server
    router: Process

    @property
    def ports(self) -> dict[str, int]:
        router = int(self.router.url.rpartition(":")[2])
        return {SERVER: self.server.said["port"], ROUTER: router}

    def resident(self) -> dict[str, int]:
        """Bytes of both, and of the processes that the server started."""
        pids = {SERVER: [self.server.process.pid], ROUTER: [self.router.popen.pid]}
        pids["children"] = [*family(self.server.process.pid)][1:]
        return {name: sum(map(resident_bytes, ids)) for name, ids in pids.items()}


def resident_bytes(pid: int) -> int:
    try:
        pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    except (OSError, IndexError):  # it has just ended
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def write_keys(folder: Path) -> Path:
    file = folder.parent / "load-keys"
    file.write_text("".join(f"{name} {key}\n" for name, key in KEYS.items()))
    file.chmod(0o600)
    return file


@contextmanager
def running(folder: Path, *words: str) -> Generator[Place]:
    """Both, once they are ready."""
    keys = ("--keys", str(write_keys(folder)))
    with start_server(folder, *keys, *words, name="loaded") as server:
        flags = ("--replica", f"http://127.0.0.1:{server.said['port']}", "--port", "0", *keys)
        probe = {"ROOFLIGHT_API_KEY": KEYS["probe"]}
        with process("-m", "rooflight", "route", *flags, env=probe) as router:
            until(lambda: server.client.get("/ready").status == 200)
            yield Place(server, router)


@dataclass(frozen=True)
class Asked:
    """One request of the honest client, and how it went."""

    way: str
    beside: str
    sent: float  # by the clock that never goes back
    status: int = NO_ANSWER
    error: str = ""  # anything but a whole answer
    first_s: float = math.inf
    whole_s: float = math.inf

    @property
    def is_whole(self) -> bool:
        return self.status == 200 and not self.error


@dataclass
class Watched:
    """All that was seen; times are seconds since the beginning."""

    asked: list[Asked] = field(default_factory=list[Asked])
    lags: list[tuple[str, str, float]] = field(default_factory=list[tuple[str, str, float]])
    memory: list[tuple[float, dict[str, int]]] = field(
        default_factory=list[tuple[float, dict[str, int]]]
    )
    neighbours: dict[str, Counter[str]] = field(default_factory=dict[str, Counter[str]])

    def times(self, way: str, beside: str, *, first: bool) -> list[float]:
        those = (a for a in self.asked if (a.way, a.beside) == (way, beside) and a.is_whole)
        return [a.first_s if first else a.whole_s for a in those]

    def statuses(self) -> Counter[int]:
        return Counter(a.status for a in self.asked)

    def errors(self) -> Counter[str]:
        return Counter(a.error for a in self.asked if a.error)

    def lag(self, way: str, beside: str) -> list[float]:
        return [s for w, b, s in self.lags if (w, b) == (way, beside)]

    def bytes_of(self, name: str, begin: float, end: float) -> float:
        """Mean of a part of the time."""
        return mean(sizes[name] for at, sizes in self.memory if begin <= at < end)


def percentile(values: Iterable[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


class Honest:
    """The client whose requests are watched."""

    def __init__(self, session: aiohttp.ClientSession, ports: dict[str, int]) -> None:
        self._session, self._ports = session, ports
        self._numbers = iter(range(10**9))

    async def ask(self, way: str, beside: str) -> Asked:
        """A short text, every other one as a stream; never raises."""
        number = next(self._numbers)
        body = {"model": MODEL, "prompt": f"the cat {number}", "max_tokens": TOKENS}
        body |= {"stream": number // 2 % 2 == 0, "ignore_eos": True, "seed": number % 1000}
        url = f"http://127.0.0.1:{self._ports[way]}/v1/completions"
        sent = time.monotonic()
        status = NO_ANSWER
        try:
            async with self._session.post(url, data=json.dumps(body)) as reply:
                status = reply.status
                parts = [(time.monotonic() - sent, p) async for p in reply.content.iter_any()]
        except (aiohttp.ClientError, OSError, TimeoutError) as broken:
            return Asked(way, beside, sent, status, type(broken).__name__)
        text = b"".join(part for _, part in parts)
        end = b"data: [DONE]\n\n" if body["stream"] else b"}"
        error = "" if status == 200 and text.endswith(end) else _error(status, text, reply.headers)
        return Asked(way, beside, sent, status, error, parts[0][0], parts[-1][0])

    async def lag(self, way: str) -> float:
        """Seconds until `/health` was answered: what its event loop is late."""
        start = time.monotonic()
        url = f"http://127.0.0.1:{self._ports[way]}/health"
        async with self._session.get(url) as reply:
            await reply.read()
            assert reply.status == 200, f"{way} is red"
        return time.monotonic() - start


def _error(status: int, text: bytes, headers: Mapping[str, str]) -> str:
    """Its code, and whether it says when to come again."""
    with suppress(ValueError, KeyError, TypeError):
        code = json.loads(text.rpartition(b"data: ")[2])["error"]["code"]
        return f"{status} {code}{', later' if 'Retry-After' in headers else ''}"
    return f"{status} cut off"


def session() -> aiohttp.ClientSession:
    """Of the honest client; each request has a connection of its own."""
    headers = {"Authorization": f"Bearer {KEYS['honest']}", "Content-Type": "application/json"}
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    timeout = aiohttp.ClientTimeout(total=300)
    return aiohttp.ClientSession(connector=connector, timeout=timeout, headers=headers)


@asynccontextmanager
async def neighbour(kind: str, share: int, ports: Iterable[int]) -> AsyncGenerator[Counter[str]]:
    """One at work while the block runs; after it, what it was answered."""
    words = (str(NEIGHBOUR), kind, str(share), KEYS["neighbour"], *map(str, ports))
    process = await asyncio.create_subprocess_exec(sys.executable, *words, stdout=subprocess.PIPE)
    assert process.stdout is not None
    seen: Counter[str] = Counter()
    try:
        assert await process.stdout.readline() == b"begun\n"
        yield seen
        process.terminate()
        seen.update(json.loads(await process.stdout.readline()))
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


Shift = tuple[str, float]  # who is beside, and for how long
WHOLE, QUARTER = 1, 4  # how large a neighbour is


class Watch:
    """Asks, probes and weighs while neighbours come and go."""

    def __init__(self, place: Place, honest: Honest, share: int) -> None:
        self.watched = Watched()
        self._place, self._honest, self._share = place, honest, share
        self._beside = ""  # nobody counts while they change
        self._begin = time.monotonic()
        self._open: set[asyncio.Task[None]] = set()

    async def run(self, shifts: Sequence[Shift]) -> Watched:
        works = [asyncio.create_task(work()) for work in (self._ask, self._probe, self._weigh)]
        try:
            for kind, seconds in shifts:
                await self._shift(kind, seconds)
                for work in works:
                    if work.done():
                        work.result()
        finally:
            for work in works:
                work.cancel()
        await asyncio.gather(*self._open)
        return self.watched

    async def _shift(self, kind: str, seconds: float) -> None:
        async with neighbour(kind, self._share, self._place.ports.values()) as seen:
            await asyncio.sleep(SETTLE_S)
            self._beside = kind
            await asyncio.sleep(seconds - SETTLE_S)
            self._beside = ""
        self.watched.neighbours.setdefault(kind, Counter()).update(seen)

    async def _ask(self) -> None:
        for number in range(10**9):
            way = ROUTER if number % 2 else SERVER
            task = asyncio.create_task(self._ask_one(way))
            self._open.add(task)
            task.add_done_callback(self._open.discard)
            due = self._begin + (number + 1) / RATE
            await asyncio.sleep(max(0.0, due - time.monotonic()))

    async def _ask_one(self, way: str) -> None:
        self.watched.asked.append(await self._honest.ask(way, self._beside))

    async def _probe(self) -> None:
        while True:
            for way in (SERVER, ROUTER):
                beside, lag = self._beside, await self._honest.lag(way)
                self.watched.lags.append((way, beside, lag))
            await asyncio.sleep(PROBE_EVERY_S)

    async def _weigh(self) -> None:
        while True:
            now = time.monotonic() - self._begin
            self.watched.memory.append((now, self._place.resident()))
            await asyncio.sleep(WEIGH_EVERY_S)


def watch(place: Place, shifts: Sequence[Shift], share: int = WHOLE) -> Watched:
    async def run() -> Watched:
        async with session() as opened:
            return await Watch(place, Honest(opened, place.ports), share).run(shifts)

    return asyncio.run(run())

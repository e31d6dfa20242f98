"""Many streams at once against a server, from one event loop: who got how much, and how late."""

import asyncio
import json
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from .client import MODEL
from .server_process import Server

_HEADERS = {"Content-Type": "application/json"}


@dataclass
class Tally:
    """What all streams saw."""

    tokens: Counter[int] = field(default_factory=Counter[int])  # by client
    statuses: Counter[int] = field(default_factory=Counter[int])
    errors: list[str] = field(default_factory=list[str])
    ttft: list[float] = field(default_factory=list[float])
    longest_gap: float = 0.0
    finished: int = 0


class Load:
    """Streams of `clients` clients, each over connections of its own."""

    def __init__(self, server: Server, *, clients: int, tokens: int) -> None:
        self._url = f"http://{server.client.host}:{server.client.port}/v1/completions"
        self._clients = clients
        self._tokens = tokens
        self._numbers = iter(range(10**9))
        self._session: aiohttp.ClientSession | None = None
        self.tally = Tally()

    async def __aenter__(self) -> "Load":
        connector = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=None)
        self._session = aiohttp.ClientSession(connector=connector, timeout=timeout)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._session is not None
        await self._session.close()

    async def request(self, client: int) -> None:
        """One stream to its end."""
        number = next(self._numbers)
        body = {"model": MODEL, "prompt": f"{client} {number}", "max_tokens": self._tokens}
        body |= {"stream": True, "ignore_eos": True, "seed": number % 1000}
        assert self._session is not None
        start = then = time.monotonic()
        async with self._session.post(self._url, data=json.dumps(body), headers=_HEADERS) as reply:
            self.tally.statuses[reply.status] += 1
            if reply.status != 200:
                await reply.read()
                return
            last = b""
            async for line in reply.content:
                if line == b"\n":
                    continue
                now = time.monotonic()
                if not last:
                    self.tally.ttft.append(now - start)
                self.tally.longest_gap = max(self.tally.longest_gap, now - then)
                then, last = now, line
                self.tally.tokens[client] += 1
            if last != b"data: [DONE]\n":
                self.tally.errors.append(last.decode()[:200])
        self.tally.finished += 1

    async def hold(self, streams: int, seconds: float) -> None:
        """So many streams at any time: whoever is done begins again."""
        end = time.monotonic() + seconds

        async def repeat(client: int) -> None:
            while time.monotonic() < end:
                await self.request(client)

        await asyncio.gather(*(repeat(i % self._clients) for i in range(streams)))

    async def arrive(self, rate: float, seconds: float) -> None:
        """So many new streams a second, whatever becomes of those before."""
        start, tasks = time.monotonic(), set[asyncio.Task[None]]()
        while (now := time.monotonic() - start) < seconds:
            while len(tasks) < now * rate:
                tasks.add(asyncio.create_task(self.request(len(tasks) % self._clients)))
            await asyncio.sleep(0.005)
        await asyncio.gather(*tasks)


def run_load(
    server: Server, work: Callable[[Load], Awaitable[None]], *, clients: int, tokens: int
) -> Tally:
    async def main() -> Tally:
        async with Load(server, clients=clients, tokens=tokens) as load:
            await work(load)
            return load.tally

    return asyncio.run(main())


def resident_kb(server: Server) -> int:
    """Memory of the server's process."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(re.findall(r"VmRSS:\s+(\d+)", status)[0])

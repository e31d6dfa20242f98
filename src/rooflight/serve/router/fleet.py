"""The replicas: who is up, how much each has to do, and who gets the next request.

No connection takes a replica out at once; a probe of its readiness, every second, brings it back.
The same probe reads how many requests wait there, for other fronts may send some as well. One that
breaks off stays until a probe says otherwise: a reader that does not read has it break off, too.
"""

import asyncio
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import aiohttp

from rooflight.batching.ring import HashRing, load_bound

_PROBE_EVERY_S = 1.0
_PROBE_TIMEOUT = aiohttp.ClientTimeout(total=2.0)
_FAILURES = 2  # in a row, of a probe that finds the socket but no answer: it may only be busy
_STUCK = 5  # in a row, unanswered or answered by `/health` with 503: it makes no progress
_MOST_METRICS = 1 << 20
_WAITING = re.compile(
    rb"^vllm:num_requests_waiting(?:\{[^}\n]*\})? (\d{1,9})(?:\.0*)?$", re.MULTILINE
)


@dataclass(slots=True)
class ReplicaState:
    """One server, as this front sees it."""

    url: str
    is_up: bool = False
    in_flight: int = 0
    waiting: int = 0  # as it says itself
    failures: int = 0

    @property
    def load(self) -> int:
        """A request that waits counts twice: a queue is what affinity must not cost."""
        return self.in_flight + self.waiting


class Replicas:
    """Replicas on a ring."""

    def __init__(
        self,
        urls: Sequence[str],
        *,
        least_bound: int,
        probe_key: str | None,
        changed: Callable[[ReplicaState, str], None],
        stuck: Callable[[ReplicaState], None],
    ) -> None:
        self.replicas = {url: ReplicaState(url) for url in urls}
        self._ring = HashRing(urls)
        self._least = least_bound
        self._headers = {"Authorization": f"Bearer {probe_key}"} if probe_key else {}
        self._changed = changed  # is told of every replica that comes or goes, and why
        self._stuck = stuck  # and of one that will not end what it has

    def pick(self, key: bytes, tried: set[str]) -> ReplicaState | None:
        """The first replica on the way of the key that is up, has room and was not tried."""
        loads = {url: replica.load for url, replica in self.replicas.items() if replica.is_up}
        if not loads:
            return None
        bound = load_bound(loads, least=self._least)
        for url in self._ring.order(key):
            if loads.get(url, bound) < bound and url not in tried:
                return self.replicas[url]
        return None

    def owner(self, key: bytes) -> str | None:
        """Who would get it if nobody had anything to do."""
        return next((u for u in self._ring.order(key) if self.replicas[u].is_up), None)

    def eject(self, replica: ReplicaState, why: str) -> None:
        """Gives it no more requests until a probe finds it ready."""
        self._turn(replica, is_up=False, why=why)

    def _turn(self, replica: ReplicaState, *, is_up: bool, why: str) -> None:
        if replica.is_up != is_up:
            replica.is_up = is_up
            self._changed(replica, why)

    async def watch(self, session: aiohttp.ClientSession) -> None:
        """Probes all replicas, for ever."""
        while True:
            await self.probe(session)
            await asyncio.sleep(_PROBE_EVERY_S)

    async def probe(self, session: aiohttp.ClientSession) -> None:
        await asyncio.gather(*(self._probe(session, each) for each in self.replicas.values()))

    async def _probe(self, session: aiohttp.ClientSession, replica: ReplicaState) -> None:
        try:
            status = await _status(session, f"{replica.url}/ready")
            if status == 404:  # not every server tells warm from alive
                status = await _status(session, f"{replica.url}/health")
            is_red = status == 503 and await _status(session, f"{replica.url}/health") == 503
            replica.failures = replica.failures + 1 if is_red else 0
            self._turn(replica, is_up=status == 200, why=f"probe: {status}")
        except aiohttp.ClientConnectorError:
            self._turn(replica, is_up=False, why="probe: no connection")
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            replica.failures += 1
            if replica.failures >= _FAILURES:
                self._turn(replica, is_up=False, why=f"probe: {type(error).__name__}")
        if replica.failures == _STUCK:
            self._stuck(replica)
        waiting = await _waiting(session, replica.url, self._headers) if replica.is_up else 0
        replica.waiting = waiting


async def _status(session: aiohttp.ClientSession, url: str) -> int:
    async with session.get(url, timeout=_PROBE_TIMEOUT, allow_redirects=False) as response:
        return response.status


async def _waiting(session: aiohttp.ClientSession, url: str, headers: dict[str, str]) -> int:
    """Requests that wait there; 0 if it does not say."""
    text = b""
    with suppress(aiohttp.ClientError, OSError, TimeoutError):
        async with session.get(
            f"{url}/metrics", timeout=_PROBE_TIMEOUT, headers=headers, allow_redirects=False
        ) as response:
            while len(text) < _MOST_METRICS and (part := await response.content.read(1 << 16)):
                text += part
    return sum(map(int, _WAITING.findall(text)))

"""The side that generates: prompts are computed by another server, and here on any doubt.

A job is expected here while the other server computes its prompt. Its first token is told at once;
then it waits for a row, and its KV comes in a group of layers at a time, while other rows go on.
Whatever is late, wrong or lost on the way, the job is computed here, and its text is the same.
"""

import asyncio
import time
from collections.abc import Callable

import aiohttp

from rooflight.batching.request import Admission
from rooflight.errors import ModelError
from rooflight.serve.disaggregated.engine import DisaggregatedEngine
from rooflight.serve.disaggregated.messages import (
    First,
    read_first,
    read_parcel,
    write_order,
    write_step,
)
from rooflight.serve.disaggregated.transfer import Carrier, Parcel
from rooflight.serve.engine.request import EngineRequest
from rooflight.serve.engine.runner import Runner
from rooflight.serve.server.bounds import Bounds
from rooflight.serve.server.engine_calls import call
from rooflight.serve.server.logs import Log

_POLL_S = 0.001
_END = aiohttp.ClientWSTimeout(ws_close=1.0)  # pyright: ignore[reportCallIssue]
_LEAST_BACKOFF_S, _MOST_BACKOFF_S = 0.5, 30.0
_MORE_BYTES = 1 << 16  # of a message, beyond the largest array


class PrefillClient:
    """Takes the jobs of one server to another that prefills, at `url`."""

    def __init__(
        self,
        engine: DisaggregatedEngine,
        runner: Runner,
        carrier: Carrier,
        log: Log,
        *,
        url: str,
        key: str | None,
        mark: str,
        timeout_s: float,
        bounds: Bounds,
    ) -> None:
        self._engine, self._runner, self._carrier, self._log = engine, runner, carrier, log
        self._url, self._mark, self._bounds = f"{url}/prefill", mark, bounds
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._timeout_s = timeout_s
        self._session: aiohttp.ClientSession | None = None
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._backoff_s, self._retry_time = 0.0, 0.0

    def start(self) -> None:
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))

    def gauges(self) -> dict[str, Callable[[], float]]:
        return {
            "prompts_inserted": lambda: self._engine.num_inserted,
            "prompts_lost": lambda: self._engine.num_lost,
        }

    async def stop(self) -> None:
        for task in list(self._tasks.values()):
            task.cancel()
        if self._session is not None:
            await self._session.close()

    def submit(self, job: EngineRequest) -> Admission:
        """Queues a job, or says why not; one of a single tile is computed here."""
        is_short = len(job.prompt) <= self._engine.config.tile_tokens
        is_plain = job.allowed is None and not (job.sampling.adjusts or job.sampling.min_p)
        if is_short or not is_plain or time.monotonic() < self._retry_time:
            return self._runner.submit(job)
        found = self._runner.submit(job, self._engine.expect)
        if found is Admission.ADMITTED:
            task = asyncio.create_task(self._borrow(job))
            self._tasks[job.id] = task
            task.add_done_callback(lambda _: self._tasks.pop(job.id, None))
        return found

    def cancel(self, id: int) -> None:
        """A job that is not here is no error."""
        task = self._tasks.get(id)
        if task is not None:
            task.cancel()
        self._runner.cancel(id)

    async def _borrow(self, job: EngineRequest) -> None:
        try:
            if await call(self._runner, lambda: self._engine.is_away(job.id)):
                await self._talk(job)
        except Exception as error:  # whatever it is: a job that nobody computes would hang
            self._log.event("prefill_lost", error=type(error).__name__, why=str(error)[:200])
            await call(self._runner, lambda: self._engine.lose(job.id))

    async def _talk(self, job: EngineRequest) -> None:
        """From the order to the last of its KV, each of the two within the timeout."""
        assert self._session is not None
        first = None
        try:
            async with (
                asyncio.timeout(self._timeout_s) as timer,
                self._session.ws_connect(
                    self._url,
                    headers=self._headers,
                    max_msg_size=self._engine.most_bytes + _MORE_BYTES,
                    timeout=_END,
                ) as socket,
            ):
                first = await self._first(socket, job)
                self._backoff_s = 0.0
                timer.reschedule(asyncio.get_running_loop().time() + self._timeout_s)
                await self._take(socket, job.id, first)
        finally:
            if first is None:
                self._put_off()

    async def _first(self, socket: aiohttp.ClientWebSocketResponse, job: EngineRequest) -> First:
        await socket.send_str(write_order(job, self._mark, self._timeout_s))
        first = read_first(await socket.receive_str(), self._bounds)
        if first.num_groups != self._engine.num_groups:
            raise ModelError(f"{first.num_groups} groups of layers, not {self._engine.num_groups}")
        return first

    def _put_off(self) -> None:
        """The other server is asked again later, and later each time it fails."""
        longer = min(_MOST_BACKOFF_S, 2 * self._backoff_s)
        self._backoff_s = max(_LEAST_BACKOFF_S, longer)
        self._retry_time = time.monotonic() + self._backoff_s

    async def _take(self, socket: aiohttp.ClientWebSocketResponse, id: int, first: First) -> None:
        has_row = asyncio.Event()
        begin = _in_loop(has_row.set)
        deltas = await call(
            self._runner,
            lambda: self._engine.offer(id, first.token, first.logprobs, begin),
            lambda found: found,
        )
        if not deltas or deltas[0].finish is not None:
            return
        await has_row.wait()
        await socket.send_str(write_step(read=0))
        for group in range(first.num_groups):
            await self._take_group(socket, id, group, first.num_groups)

    async def _take_group(
        self, socket: aiohttp.ClientWebSocketResponse, id: int, group: int, num_groups: int
    ) -> None:
        """The next group is asked for before this one is waited for."""
        came, parcel, sizes = read_parcel(await socket.receive_str())
        parts = [await socket.receive_bytes() for _ in sizes]
        if came != group or [len(part) for part in parts] != list(sizes):
            raise ModelError("parts that were not asked for")
        if group + 1 < num_groups:
            await socket.send_str(write_step(read=group + 1))
        await self._insert(id, group, parcel._replace(parts=parts))
        await socket.send_str(write_step(taken=group))

    async def _insert(self, id: int, group: int, parcel: Parcel) -> None:
        like = await call(self._runner, lambda: self._engine.like(id, group))
        if like is None:
            raise ModelError("nobody waits for it any more")
        loop = asyncio.get_running_loop()
        receipt = await loop.run_in_executor(None, self._carrier.receive, parcel, like)
        while not receipt.is_ready():
            await asyncio.sleep(_POLL_S)
        values = receipt.values()
        if not await call(self._runner, lambda: self._engine.insert(id, group, values)):
            raise ModelError("its blocks are somebody else's now")


def _in_loop(act: Callable[[], None]) -> Callable[[], None]:
    """The same, from any thread."""
    loop = asyncio.get_running_loop()
    return lambda: loop.call_soon_threadsafe(act) and None

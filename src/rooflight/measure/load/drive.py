"""Load for a server: requests go out when they are due, whether or not earlier ones have ended.

In: arrivals, the address of a server, bounds. Out: `Measured`. The next body is written while
waiting, so that a request leaves when its time has come. In a closed loop a request is due when
one of so many clients has its last answer.
"""

import asyncio
import io
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import (
    Any,  # JSON of a foreign server
    cast,  # Any: JSON of a foreign server
)

import aiohttp

from rooflight.errors import RooflightError, UsageError
from rooflight.files import raise_file_limit
from rooflight.measure.load.machine import busy, other_load
from rooflight.measure.load.tally import LONGEST_WORDS, LoadTally, Measured, Reply
from rooflight.measure.load.target import Dialect, Prompts, Target
from rooflight.plan.serving.simulate.arrivals import Arrival
from rooflight.plan.serving.simulate.tally import Slo

_LONGEST_EVENT = 1 << 20  # bytes; a server that never ends a line fills no memory

Watch = Callable[[int, int], None]  # requests sent, requests finished
_WATCH_EVERY_S = 0.1


@dataclass(frozen=True, slots=True)
class Driven:
    """What was measured, and how the server was asked."""

    measured: Measured
    dialect: Dialect


def drive(
    arrivals: Iterable[Arrival],
    *,
    num_requests: int,
    target: Target,
    slo: Slo | None = None,
    seed: int = 0,
    watch: Watch | None = None,
    concurrency: int | None = None,
) -> Driven:
    """Sends all arrivals, in order of time, and waits for the last answer or the time limit."""
    tally = LoadTally(slo or Slo())
    raise_file_limit()
    before = busy(target.url)
    dialect = asyncio.run(_drive(arrivals, target, seed, tally, watch, concurrency))
    return Driven(tally.result(num_requests, other_load(before, busy(target.url))), dialect)


async def _drive(
    arrivals: Iterable[Arrival],
    target: Target,
    seed: int,
    tally: LoadTally,
    watch: Watch | None,
    concurrency: int | None,
) -> Dialect:
    headers = {"Authorization": f"Bearer {target.key}"} if target.key else {}
    prompts = Prompts(target.vocab, seed)
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),  # an open loop has no bound on what is open
        timeout=aiohttp.ClientTimeout(total=None),
        headers=headers,
        auto_decompress=False,
    ) as session:
        dialect = await learn(session, target, prompts.ids(0, Arrival(0.0, 8, 2)))
        clients = asyncio.Semaphore(concurrency) if concurrency else None
        run = _LoadRun(session, target, tally, watch, clients, time.perf_counter())
        try:
            async with asyncio.timeout(target.time_limit_s), asyncio.TaskGroup() as group:
                for index, arrival in enumerate(arrivals):
                    body = dialect.body(prompts.ids(index, arrival), arrival.output_tokens)
                    due_s = await run.due(arrival)
                    group.create_task(run.one(body, due_s, arrival))
        except TimeoutError:
            pass  # those that were cancelled have said so to the tally
        return dialect


@dataclass(slots=True)
class _LoadRun:
    """What the requests of a run share."""

    session: aiohttp.ClientSession
    target: Target
    tally: LoadTally
    watch: Watch | None
    clients: asyncio.Semaphore | None  # of a closed loop
    begin_s: float
    watched_s: float = 0.0

    async def due(self, arrival: Arrival) -> float:
        """Waits until a request is due, and says when that was."""
        if self.clients:
            await self.clients.acquire()
            return time.perf_counter()
        due_s = self.begin_s + arrival.time_s
        await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
        return due_s

    async def one(self, body: bytes, due_s: float, asked: Arrival) -> None:
        """One request, from its due time to its last token."""
        self.tally.sent(max(0.0, time.perf_counter() - due_s))
        self._show()
        answer = Reply()
        answer.fail("time limit", f"open after {self.target.time_limit_s:g} s of the run")
        try:
            answer = await ask(
                self.session, self.target.completions, body, timeout_s=self.target.timeout_s
            )
        finally:
            if self.clients:
                self.clients.release()
            self.tally.ended(answer, due_s=due_s, begin_s=self.begin_s, asked=asked)
            self._show()

    def _show(self) -> None:
        now = time.perf_counter()
        if self.watch is not None and now - self.watched_s > _WATCH_EVERY_S:
            self.watched_s = now
            self.watch(self.tally.num_sent, self.tally.num_finished)


# What a server understands beyond the plain request, found by asking it.

_FIRST_ASK_S = 120.0  # a server may compile on its first request
_REFUSED = ("http 400", "http 422")
_HINT = "the server must be up, with /v1/completions; --key-env NAME if it wants a key"


async def learn(session: aiohttp.ClientSession, target: Target, ids: Sequence[int]) -> Dialect:
    """Asks for the served model unless named, then for two tokens in each way till one is taken."""
    name = target.model or await _served(session, target.url)
    words = ""
    for takes_ids in (True, False):
        for ignores_eos in (True, False):
            dialect = Dialect(name, takes_ids, ignores_eos)
            body = dialect.body(ids, 2)
            answer = await ask(session, target.completions, body, timeout_s=_FIRST_ASK_S)
            if not answer.error:
                return dialect
            words = f"{answer.error}: {answer.words}"
            if answer.error not in _REFUSED:
                raise RooflightError(f"{target.url} does not answer: {words}", hint=_HINT)
    raise UsageError(f"{target.url} refuses every kind of prompt: {words}", hint=_HINT)


async def _served(session: aiohttp.ClientSession, url: str) -> str:
    try:
        async with session.get(f"{url}/v1/models") as response:
            document: Any = json.loads(await response.content.read(1 << 20))
        return str(document["data"][0]["id"])
    except (aiohttp.ClientError, OSError, ValueError, LookupError, TypeError) as error:
        raise RooflightError(
            f"{url}/v1/models names no model: {type(error).__name__}: {error}", hint=_HINT
        ) from None


async def ask(session: aiohttp.ClientSession, url: str, body: bytes, *, timeout_s: float) -> Reply:
    """Posts a body that asks for a stream and reads it to the end; errors are in the answer."""
    answer = Reply()
    headers = {"Content-Type": "application/json"}
    try:
        async with (
            asyncio.timeout(timeout_s),
            session.post(url, data=io.BytesIO(body), headers=headers) as response,
        ):
            if response.status != 200:
                text = await response.content.read(LONGEST_WORDS)
                answer.fail(f"http {response.status}", text.decode("utf-8", "replace"))
            else:
                await _read(response.content, answer)
    except TimeoutError:
        answer.fail("timeout", f"no end within {timeout_s:g} s")
    except aiohttp.ClientConnectorError as error:
        answer.fail("connect", error)
    except (aiohttp.ClientError, OSError) as error:
        answer.fail("broken stream", error)
    except _WrongEvent as error:
        answer.fail(error.kind, error)
    answer.output_tokens = answer.output_tokens or answer.chunks
    return answer


class _WrongEvent(Exception):
    """The stream says that it failed, or says nothing that can be read."""

    def __init__(self, kind: str, words: object) -> None:
        super().__init__(words)
        self.kind = kind


async def _read(content: aiohttp.StreamReader, answer: Reply) -> None:
    left = b""
    async for piece in content.iter_any():
        now = time.perf_counter()
        *lines, left = (left + piece).split(b"\n")
        if len(left) > _LONGEST_EVENT:
            raise _WrongEvent("bad event", f"a line of more than {_LONGEST_EVENT:,} bytes")
        for data in _data(lines):
            _take(data, answer, now)
    if not answer.is_done:
        raise _WrongEvent("broken stream", "it ended without [DONE]")
    if answer.finish_s and answer.output_tokens and answer.chunks in (0, answer.output_tokens - 1):
        answer.chunk(answer.finish_s)  # tokens without a text: special, or half a character
    if not answer.chunks:
        raise _WrongEvent("no output", "the stream held no token")


def _data(lines: list[bytes]) -> Iterator[bytes]:
    return (line[5:].strip() for line in lines if line.startswith(b"data:"))


def _take(data: bytes, answer: Reply, now: float) -> None:
    if data == b"[DONE]":
        answer.is_done = True
        return
    event = _parse(data)
    if "error" in event:
        raise _WrongEvent("error event", json.dumps(event["error"]))
    usage = event.get("usage")
    if isinstance(usage, dict):
        counts = cast(dict[str, Any], usage)
        answer.input_tokens = _count(counts.get("prompt_tokens"))
        answer.output_tokens = _count(counts.get("completion_tokens"))
    choice = _choice(event)
    if choice is None:
        return
    if choice.get("text") or choice.get("finish_reason") is None:  # a token may have no text yet
        answer.chunk(now)
    if choice.get("finish_reason") is not None:
        answer.finish_s = now


def _count(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def _parse(data: bytes) -> dict[str, Any]:
    try:
        event = json.loads(data)
    except (ValueError, RecursionError):
        event = None
    if not isinstance(event, dict):
        raise _WrongEvent("bad event", data[:LONGEST_WORDS])
    return cast(dict[str, Any], event)


def _choice(event: dict[str, Any]) -> dict[str, Any] | None:
    """The first, of an event that has any."""
    choices = event.get("choices")
    first = cast(list[Any], choices)[0] if isinstance(choices, list) and choices else None
    return cast(dict[str, Any], first) if isinstance(first, dict) else None

"""The router, its fleet and its probes between clients and replicas that fail.

In: a `Story`. Out: nothing, or a violation: a request without an answer, begun by two replicas, an
answer that is cut short and looks whole, a request that is counted for ever. Replicas are models.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Coroutine
from contextlib import suppress
from contextvars import Context
from types import SimpleNamespace
from typing import Any, cast

from rooflight.serve.router.front import Front, RouterSettings
from rooflight.serve.router.route import _session  # pyright: ignore[reportPrivateUsage]
from rooflight.serve.server.front import open_front
from rooflight.serve.server.logs import Log

from .loop import HOST, SimLoop
from .story import Story

_FRONT = ("127.0.0.1", 80)
_READ_S, _PATIENCE_S = 4.0, 30.0
_TOKENS = 4


class Replica:
    """A server on raw streams; what it has begun it says."""

    def __init__(self, world: "World", name: str) -> None:
        self.world, self.name = world, name
        self.status, self.gap_s, self.breaks, self.hangs = 200, 0.01, 0.0, 0.0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, TimeoutError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            length = head.lower().partition("content-length:")[2].split("\r\n")[0]
            body = await reader.readexactly(int(length or 0))
            if head.startswith("GET"):
                text = b"vllm:num_requests_waiting 0\n" if "/metrics" in head else b"{}"
                writer.write(_reply(self.status if "/ready" in head else 200, text))
            else:
                await self._answer(json.loads(body), writer)
            await writer.drain()
        writer.close()

    async def _answer(self, asked: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        draw = self.world.story.draw
        if self.status != 200:
            writer.write(_reply(self.status, b'{"error": "no room"}', "Retry-After: 1\r\n"))
            return
        self.world.begun[asked["prompt"]] += 1
        if draw.random() < self.hangs:
            await asyncio.sleep(2 * _PATIENCE_S)
        words = [f"{asked['prompt']}:{at}" for at in range(_TOKENS)]
        if not asked["stream"]:
            await asyncio.sleep(self.gap_s * _TOKENS)
            reply = _reply(200, json.dumps(words).encode())
            cut = draw.randrange(len(reply)) if draw.random() < self.breaks else len(reply)
            writer.write(reply[:cut])
            return
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
        )
        for at, word in enumerate([*words, "[DONE]"]):
            if draw.random() < self.breaks:
                writer.write(f"data: {word}"[: draw.randrange(1, 8)].encode())
                return
            writer.write(f"data: {word}\n\n".encode())
            if at < _TOKENS:
                await asyncio.sleep(self.gap_s)


def _reply(status: int, body: bytes, more: str = "") -> bytes:
    head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\n{more}"
    return f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body


class World:
    """Clients, a front, replicas, and what goes wrong between them."""

    def __init__(self, story: Story) -> None:
        self.story, self.loop = story, SimLoop(story)
        names = [f"10.0.0.{at + 1}" for at in range(story.draw.randint(1, 3))]
        self.replicas = {name: Replica(self, name) for name in names}
        self.begun: Counter[str] = Counter()
        self.asked = 0
        self.is_calm = False
        self.front: Front | None = None

    def on(self, host: str, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        context = Context()
        context.run(HOST.set, host)
        task = self.loop.create_task(work, context=context)
        task.add_done_callback(self.loop.judge)
        return task

    async def start(self, replica: Replica) -> None:
        self.loop.network.boot(replica.name)
        with suppress(OSError):  # it listens already
            await asyncio.start_server(replica.serve, replica.name, 80)

    async def route(self, is_ready: asyncio.Event, is_over: asyncio.Event) -> None:
        urls = tuple(f"http://{name}:80" for name in self.replicas)
        settings = RouterSettings(urls, least_bound=2, timeout_s=_READ_S)
        log = SimpleNamespace(event=self.logged)
        async with _session(settings) as session:
            self.front = front = Front(settings, session, cast(Log, log))
            await front.fleet.probe(session)
            watch = asyncio.create_task(front.fleet.watch(session))
            sock = SimpleNamespace(family=2, type=1, proto=6, getsockname=lambda: _FRONT)
            runner = await open_front(front.app(), cast(Any, sock))
            is_ready.set()
            await is_over.wait()
            watch.cancel()
            await runner.cleanup()

    def logged(self, name: str, **fields: object) -> None:
        self.story.tell(f"front: {name} {fields}")

    async def ask(self, prompt: str, *, stream: bool, leaves: bool = False) -> str:
        """One client; what it got, in words."""
        body = json.dumps({"prompt": prompt, "stream": stream}).encode()
        head = "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
        found = b""
        try:
            async with asyncio.timeout(_PATIENCE_S):
                reader, writer = await asyncio.open_connection(*_FRONT)
                writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
                if leaves:
                    await asyncio.sleep(self.story.draw.uniform(0, 1))
                    writer.transport.abort()
                    return "left"
                found = await reader.read()
                writer.close()
        except TimeoutError:
            raise AssertionError(f"{prompt} has no answer after {_PATIENCE_S} s") from None
        except ConnectionError:
            return "cut off"
        got = self._judge(prompt, found)
        self.story.tell(f"{prompt}: {got}")
        return got

    def _judge(self, prompt: str, found: bytes) -> str:
        head, _, body = found.partition(b"\r\n\r\n")
        assert head, f"{prompt} got nothing"
        status = head.split(b" ")[1].decode()
        words = [f"{prompt}:{at}" for at in range(_TOKENS)]
        if b"text/event-stream" in head:
            if b"chunked" in head.lower():
                body = _unchunked(body)
            events = [line[6:].decode() for line in body.split(b"\n\n") if line]
            if events[-1] == "[DONE]":
                assert events[:-1] == words, f"{prompt}: {events} look whole"
                return "whole"
            with suppress(ValueError):
                told = json.loads(events[-1])
                assert "error" in told, f"{prompt} ends in {told}"
                events[-1] = "told"
            assert events[-1] == "told", f"{prompt} ends in {events[-1:]}, silently"
            assert events[:-1] == words[: len(events) - 1], f"{prompt}: {events}"
            return "error event"
        length = head.lower().partition(b"content-length:")[2].split(b"\r\n")[0]
        assert len(body) == int(length), f"{prompt}: a body cut short"
        if status == "200":
            assert json.loads(body) == words, f"{prompt}: {body!r} looks whole"
            return "whole"
        assert b"error" in body, f"{prompt}: {status} without a word"
        return status

    def check(self) -> None:
        twice = [prompt for prompt, count in self.begun.items() if count > 1]
        assert not twice, f"{twice} were begun by two replicas"
        if self.front is not None:
            for each in self.front.fleet.replicas.values():
                assert 0 <= each.in_flight <= self.asked, f"{each} has requests of nobody"

    async def run(self) -> None:
        is_ready, is_over = asyncio.Event(), asyncio.Event()
        for replica in self.replicas.values():
            self.on(replica.name, self.start(replica))
        routing = self.on(_FRONT[0], self.route(is_ready, is_over))
        await is_ready.wait()
        clients: list[asyncio.Task[Any]] = []
        for at in range(self.story.draw.randint(4, 14)):
            await asyncio.sleep(self.story.draw.expovariate(2.0))
            if self.story.happens(0.6):
                self.fault()
            self.asked += 1
            stream, leaves = self.story.happens(0.5), self.story.happens(0.1)
            clients.append(self.on("client", self.ask(f"p{at}", stream=stream, leaves=leaves)))
        await asyncio.gather(*clients)
        self.calm()
        front = self.front
        for _ in range(int(_PATIENCE_S)):
            await asyncio.sleep(1.0)
            if front is not None and not front.num_open:
                break
        await asyncio.sleep(5.0)  # a few probes
        assert front is not None and front.num_open == 0, "a request is open for ever"
        held = [r.url for r in front.fleet.replicas.values() if r.in_flight or not r.is_up]
        assert not held, f"{held} are down, or have requests of nobody"
        got = await self.on("client", self.ask("last", stream=True))
        assert got == "whole", f"with all well again: {got}"
        is_over.set()
        await routing

    def calm(self) -> None:
        self.story.tell("from now on nothing goes wrong")
        self.is_calm = True
        self.loop.network.cut.clear()
        for replica in self.replicas.values():
            replica.status, replica.breaks, replica.hangs = 200, 0.0, 0.0
            self.on(replica.name, self.start(replica))

    def fault(self) -> None:
        story, network = self.story, self.loop.network
        replica = story.draw.choice(list(self.replicas.values()))
        name, kind = replica.name, story.draw.randrange(8)
        story.tell(f"{name}: fault {kind}")
        if kind == 0:
            network.crash(name, silently=story.happens(0.5))
        elif kind == 1:
            self.on(name, self.start(replica))
        elif kind == 2:
            replica.status = story.draw.choice((200, 429, 503))
        elif kind == 3:
            replica.breaks = story.draw.choice((0.0, 0.3))
        elif kind == 4:
            replica.hangs = story.draw.choice((0.0, 0.5))
        elif kind == 5:
            way = (name, _FRONT[0]) if story.happens(0.5) else (_FRONT[0], name)
            network.cut.add(way)
            self.loop.call_later(story.draw.uniform(0.5, 9), lambda: network.cut.discard(way))
        elif kind == 6:
            network.break_one()
        else:
            replica.gap_s = story.draw.choice((0.001, 0.1, 3.0))


def _unchunked(body: bytes) -> bytes:
    whole = b""
    while body:
        size, _, rest = body.partition(b"\r\n")
        whole += rest[: int(size, 16)]
        body = rest[int(size, 16) + 2 :]
    return whole


def simulate(story: Story) -> None:
    """A few clients of one router, to the last of them."""
    world = World(story)
    world.loop.after_each = world.check
    world.loop.run_all(world.run())

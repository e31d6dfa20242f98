"""A client with a key of its own beside others: honest and large, or hostile; within bounds.

Run as a process of its own: `python neighbour.py KIND SHARE KEY PORT...`; with a share of 4 it has
a quarter of everything. It goes on until it is ended; SIGTERM makes it print what it was answered,
by what it did. Both kinds have as many requests of the engine at once; the hostile one holds
half-sent bodies and readers that do not read as well. On a network it would have a machine of its
own, so here others go first (`nice`).
"""

import asyncio
import json
import logging
import os
import random
import signal
import socket
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress

AT_ONCE = 24  # requests that either kind has under way
HALF_BODIES = 120  # that the hostile one holds; fewer places than this are its share
IDLE_READERS = 8
PAUSE_S = 0.2  # of a worker, on average: the bound on how much a hostile one sends
TEXT_TOKENS = 250
SECONDS = 60.0  # that anything may take
PATH = "/v1/completions"
TEXT: dict[str, object] = {"model": "tiny", "max_tokens": TEXT_TOKENS, "ignore_eos": True}
MOST: dict[str, object] = {"n": 16, "logprobs": 20, "temperature": 2, "stop": ["x" * 128] * 16}
LARGEST = {**TEXT, **MOST, "prompt": "a"}
BOMBS: list[dict[str, object]] = [
    {"type": "integer", "multipleOf": 9999991},
    {"type": "string", "pattern": "(((((a{1,200}){1,200}){1,200}){1,200}){1,200})"},
    {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(400)}},
    {"$ref": "#"},
]
NO_JSON = [b"{bad json", b"\x00" * 1000, b"[" * 200_000, b'{"a":' * 50_000, b'"\xff\xfe"', b"[]"]
NO_HEADS = [
    "Host: evil.example\r\n",
    "Host: 127.0.0.1\r\nAuthorization: Bearer sk-wrong-0123456789abcdef\r\n",
    "Host: 127.0.0.1\r\nX-Request-Timeout: nan\r\n",
    "Host: 127.0.0.1\r\nAccept: \xff\xfe\x80\r\nTraceparent: \xe2\x28\xa1\r\n",
    "Host: 127.0.0.1\r\nContent-Encoding: gzip\r\n",
]
PART: dict[str, object] = {"role": "user", "content": [{"type": "text", "text": ""}] * 1000}
CHATS = [  # a megabyte of the smallest parts there are, and less
    json.dumps({"model": "tiny", "messages": [PART] * count}).encode() for count in (1, 30)
]
OVERSIZE = [2 << 20, 17 << 20]  # above the bound of a server, and of a router
Act = Callable[[], Awaitable[str]]


class Neighbour:
    """All that one key does at the addresses that it knows."""

    def __init__(self, key: str, ports: list[int]) -> None:
        self.key, self.ports = key, ports
        self.rng = random.Random(1)
        self.seen: Counter[str] = Counter()

    def head(self, path: str, length: int, more: str = "") -> bytes:
        names = more or "Host: 127.0.0.1\r\n"
        key = "" if "Authorization" in more else f"Authorization: Bearer {self.key}\r\n"
        kind = f"Content-Type: application/json\r\nContent-Length: {length}\r\n"
        head = f"POST {path} HTTP/1.1\r\n{names}{key}{kind}Connection: close\r\n\r\n"
        return head.encode("latin-1")

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.rng.choice(self.ports))

    async def ask(self, path: str, body: bytes, more: str = "") -> str:
        """The status of an answer that is read to its end."""
        reader, writer = await self.connect()
        try:
            writer.write(self.head(path, len(body), more) + body)
            await writer.drain()
            status = (await reader.readline()).decode("latin-1")[9:12]
            while await reader.read(1 << 16):
                pass
            return status or "closed"
        finally:
            writer.transport.abort()

    async def post(self, fields: Mapping[str, object], path: str = PATH) -> str:
        return await self.ask(path, json.dumps(fields).encode())

    # Honest

    async def long_text(self) -> str:
        fields = {**TEXT, "prompt": f"text {self.rng.random()}", "stream": self.rng.random() < 0.5}
        return await self.post(fields)

    # Hostile

    async def half_body(self) -> str:
        """Held until it is cut off, or for as long as a body may take."""
        reader, writer = await self.connect()
        try:
            writer.write(self.head(PATH, 500) + b'{"model": "tiny", "prompt": "')
            async with asyncio.timeout(self.rng.uniform(5, 35)):
                return (await reader.readline()).decode("latin-1")[9:12] or "closed"
        except TimeoutError:
            return "left"
        finally:
            writer.transport.abort()

    async def idle_reader(self) -> str:
        """Asks for megabytes, and reads none of them or all of them late."""
        sock = socket.socket()
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        body = json.dumps({**LARGEST, "stream": self.rng.random() < 0.5}).encode()
        loop = asyncio.get_running_loop()
        with sock:
            await loop.sock_connect(sock, ("127.0.0.1", self.rng.choice(self.ports)))
            await loop.sock_sendall(sock, self.head(PATH, len(body)) + body)
            await asyncio.sleep(self.rng.uniform(5, 35))
            is_late = self.rng.random() < 0.5
            while is_late and await loop.sock_recv(sock, 1 << 16):
                pass
        return "late" if is_late else "left"

    async def dripping_body(self) -> str:
        _, writer = await self.connect()
        try:
            writer.write(self.head(PATH, 500))
            for _ in range(10):
                writer.write(b" ")
                await asyncio.sleep(0.5)
            return "left"
        finally:
            writer.transport.abort()

    async def many_prompts(self) -> str:
        """16 a request, the most there may be; 256 are refused."""
        count = self.rng.choice((16, 16, 256))
        return await self.post({"model": "tiny", "prompt": [[5]] * count, "max_tokens": 1})

    async def largest(self) -> str:
        return await self.post({**LARGEST, "stream": self.rng.random() < 0.5})

    async def bomb(self) -> str:
        form = {"type": "json_schema", "json_schema": {"schema": self.rng.choice(BOMBS)}}
        fields = {"model": "tiny", "prompt": "a", "max_tokens": 4, "response_format": form}
        return await self.post(fields)

    async def no_json(self) -> str:
        return await self.ask(PATH, self.rng.choice(NO_JSON))

    async def no_head(self) -> str:
        body = json.dumps({"model": "tiny", "prompt": "a", "max_tokens": 1}).encode()
        return await self.ask(PATH, body, self.rng.choice(NO_HEADS))

    async def noise(self) -> str:
        reader, writer = await self.connect()
        try:
            writer.write(self.rng.randbytes(2000) + b"\r\n\r\n")
            return (await reader.readline()).decode("latin-1")[9:12] or "closed"
        finally:
            writer.transport.abort()

    async def leave_mid_stream(self) -> str:
        reader, writer = await self.connect()
        try:
            body = json.dumps({**TEXT, "prompt": "a", "n": 4, "stream": True}).encode()
            writer.write(self.head(PATH, len(body)) + body)
            await reader.read(self.rng.randint(1, 5000))
            return "left"
        finally:
            writer.transport.abort()

    async def tokenize(self) -> str:
        return await self.post({"prompt": "naïve café " * 700}, "/tokenize")

    async def chat(self) -> str:
        return await self.ask("/v1/chat/completions", self.rng.choice(CHATS))

    async def oversize(self) -> str:
        return await self.ask(PATH, b" " * self.rng.choice(OVERSIZE))

    async def pipeline(self) -> str:
        """Many questions on one connection, whose answers nobody reads."""
        _, writer = await self.connect()
        try:
            line = f"GET /openapi.json HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {self.key}\r\n"
            writer.write(f"{line}\r\n".encode() * 20)
            await asyncio.sleep(0.5)
            return "left"
        finally:
            writer.transport.abort()

    # Both

    async def repeat(self, acts: Sequence[Act], pause_s: float) -> None:
        """One of these after another, whatever becomes of them."""
        while True:
            act = self.rng.choice(acts)
            end = "broken"
            with suppress(OSError, EOFError):
                try:
                    async with asyncio.timeout(SECONDS):
                        end = await act()
                except TimeoutError:
                    end = "unanswered"
            self.seen[f"{getattr(act, '__name__', act)} {end}"] += 1
            await asyncio.sleep(self.rng.uniform(0.01, 2 * pause_s))

    def tasks(self, kind: str, share: int) -> list[asyncio.Task[None]]:
        if kind == "honest":
            texts = (self.repeat([self.long_text], 0.05) for _ in range(AT_ONCE // share))
            return [asyncio.create_task(one) for one in texts]
        acts = [
            *(self.dripping_body, self.many_prompts, self.largest, self.bomb, self.no_json),
            *(self.no_head, self.noise, self.leave_mid_stream, self.tokenize, self.chat),
            *(self.oversize, self.pipeline, self.long_text),
        ]
        busy = [self.repeat(acts, PAUSE_S) for _ in range(AT_ONCE // share)]
        busy += [self.repeat([self.half_body], 0.5) for _ in range(HALF_BODIES // share)]
        busy += [self.repeat([self.idle_reader], 0.5) for _ in range(IDLE_READERS // share)]
        return [asyncio.create_task(one) for one in busy]


async def main(kind: str, share: int, key: str, ports: list[int]) -> None:
    neighbour, ended = Neighbour(key, ports), asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    tasks = neighbour.tasks(kind, share)
    print("begun", flush=True)
    await ended.wait()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    print(json.dumps(neighbour.seen), flush=True)


if __name__ == "__main__":
    os.nice(10)
    logging.getLogger("asyncio").setLevel(logging.ERROR)  # connections that were cut off
    kind, share, key, *ports = sys.argv[1:]
    asyncio.run(main(kind, int(share), key, [int(port) for port in ports]))

"""Replicas and a router as real processes, and clients that ask them."""

import asyncio
import io
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

_REPLICA = Path(__file__).with_name("replica_server.py")


def _call(url: str, document: object = None) -> Any:
    data = None if document is None else json.dumps(document).encode()
    with urllib.request.urlopen(url, data=data, timeout=300) as response:
        return json.load(response)


@dataclass
class Process:
    """A replica or a router."""

    url: str
    popen: subprocess.Popen[str]

    def behave(self, **behaviour: object) -> None:
        _call(f"{self.url}/behave", behaviour)

    def log(self) -> list[dict[str, str]]:
        return _call(f"{self.url}/log")

    def num_probes(self) -> int:
        """How often a replica was asked whether it is ready, as it behaves now."""
        return _call(f"{self.url}/probes")

    def num_open(self) -> int:
        """Requests that a replica has and has not answered to the end."""
        return sum(entry["end"] == "open" for entry in self.log())

    def signal(self, which: signal.Signals) -> None:
        os.kill(self.popen.pid, which)


@contextmanager
def process(*words: str, env: dict[str, str] | None = None) -> Generator[Process]:
    """A process that prints its address first, killed in the end."""
    with subprocess.Popen(
        [sys.executable, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, **(env or {})},
    ) as popen:
        try:
            assert popen.stdout is not None
            port = popen.stdout.readline().partition(" to ")[0].rpartition(":")[2]
            yield Process(f"http://127.0.0.1:{int(port)}", popen)
        finally:
            popen.kill()


def replica(name: str, *, port: int = 0) -> Any:
    return process(str(_REPLICA), name, str(port))


@contextmanager
def routed(
    count: int, *flags: str, env: dict[str, str] | None = None
) -> Generator[tuple[Process, list[Process]]]:
    """A router in front of so many replicas, once it is ready."""
    with ExitStack() as stack:
        replicas = [stack.enter_context(replica(f"r{at}")) for at in range(count)]
        words = [word for each in replicas for word in ("--replica", each.url)]
        router = stack.enter_context(
            process("-m", "rooflight", "route", *words, "--port", "0", *flags, env=env)
        )
        yield router, replicas


def until(holds: Callable[[], bool], *, seconds: float = 300.0) -> None:
    """Waits for what must come true; how long it may take is of no account."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "never came true"
        time.sleep(0.02)


@dataclass(frozen=True)
class Got:
    """What a client saw: a status, the texts of a stream, and how it ended."""

    status: int
    texts: tuple[str, ...] = ()
    end: str = ""  # done, an error's code, or silent
    headers: tuple[tuple[str, str], ...] = ()
    first_s: float = 0.0
    last_s: float = 0.0

    @property
    def who(self) -> str:
        return self.texts[0].partition(":")[0] if self.texts else ""


async def ask(session: aiohttp.ClientSession, url: str, prompt: str) -> Got:
    """One stream, read to its end."""
    body = io.BytesIO(json.dumps({"model": "m", "prompt": prompt, "stream": True}).encode())
    begin = time.monotonic()
    first = last = 0.0
    texts: list[str] = []
    async with session.post(f"{url}/v1/completions", data=body) as response:
        headers = tuple(response.headers.items())
        if response.status != 200:
            document = await response.json()
            return Got(response.status, (), str(document["error"]), headers)
        end = "silent"
        async for line in response.content:
            if not line.startswith(b"data: "):
                continue
            last = time.monotonic() - begin
            first = first or last
            if line.strip() == b"data: [DONE]":
                end = "done"
                continue
            event = json.loads(line[6:])
            if "error" in event:
                end = event["error"]["code"]
            else:
                texts.append(event["choices"][0]["text"])
        return Got(200, tuple(texts), end, headers, first, last)


def ask_all(url: str, prompts: Sequence[str], *, key: str = "", gap_s: float = 0.0) -> list[Got]:
    """All at once, or one after another has been sent."""

    async def run() -> list[Got]:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        timeout = aiohttp.ClientTimeout(total=300)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(
            headers=headers, timeout=timeout, connector=connector
        ) as session:
            tasks: list[asyncio.Task[Got]] = []
            for prompt in prompts:
                tasks.append(asyncio.create_task(ask(session, url, prompt)))
                await asyncio.sleep(gap_s)
            return await asyncio.gather(*tasks)

    return asyncio.run(run())

"""Bodies that a router holds: one key that sends many leaves room for another."""

import asyncio

import aiohttp
import pytest
from aiohttp.test_utils import TestServer

from rooflight.serve.router import front
from rooflight.serve.server.keys import make_key
from rooflight.serve.server.logs import Log

MOST = 1 << 20
KEYS = {name: f"sk-{name}-0123456789abcdef" for name in ("loud", "quiet")}


async def half_sent(port: int, key: str) -> tuple[asyncio.StreamWriter, int]:
    """A quarter of what may be held, of a longer body; and the status, if it was refused."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n"
    writer.write(f"{head}Content-Length: {MOST}\r\n\r\n".encode() + b" " * (MOST // 4))
    await writer.drain()
    try:
        async with asyncio.timeout(0.2):
            return writer, int((await reader.readline()).split()[1])
    except TimeoutError:
        return writer, 0


async def ask(port: int, key: str) -> str:
    headers = {"Authorization": f"Bearer {key}"}
    async with aiohttp.ClientSession(headers=headers) as session:
        url, body = f"http://127.0.0.1:{port}/v1/completions", b" " * (MOST // 8)
        async with session.post(url, data=body) as reply:
            return (await reply.json())["error"]["code"]


@pytest.mark.parametrize("names", [("loud", "quiet"), ("loud",)])
def test_a_key_that_holds_many_bodies_leaves_room_for_another(
    names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(front, "_MOST_HELD", MOST)
    keys = tuple(make_key(name, KEYS[name]) for name in names)

    async def run() -> tuple[list[int], str]:
        settings = front.RouterSettings(("http://127.0.0.1:9",), keys=keys)
        async with aiohttp.ClientSession() as session:
            app = front.Front(settings, session, Log("/dev/null")).app()
            async with TestServer(app) as server:
                port = int(server.make_url("/").port or 0)
                held = [await half_sent(port, KEYS["loud"]) for _ in range(6)]
                code = await ask(port, KEYS[names[-1]])
                for writer, _ in held:
                    writer.transport.abort()
                return [status for _, status in held], code

    statuses, code = asyncio.run(run())
    if len(names) == 2:
        assert statuses == [0, 0, 429, 429, 429, 429] and code == "no_replica"  # it was let in
    else:
        assert statuses == [0, 0, 0, 0, 429, 429] and code == "overloaded"

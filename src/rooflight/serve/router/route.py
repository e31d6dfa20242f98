"""The process: a socket, signals, and the order in which things stop.

A first SIGTERM or SIGINT drains: what is open may end, new requests get 503; what is still open
after `drain_s` is cut off with an error. A second one ends it at once.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress

import aiohttp

from rooflight.files import raise_file_limit
from rooflight.serve.router.front import Front, RouterSettings
from rooflight.serve.server.address import bind, check_address
from rooflight.serve.server.allocator import return_large_blocks
from rooflight.serve.server.front import open_front, until_ended, until_signal
from rooflight.serve.server.logs import Log

_PORT = 8080
_CONNECT_S = 2.0
_CUT_S = 2.0  # to tell the clients that are cut off


def route(settings: RouterSettings, log: Log, announce: Callable[[int], None]) -> bool:
    """Routes until a signal; false if requests had to be cut off."""
    check_address(settings.host, has_keys=bool(settings.keys))
    return_large_blocks()
    return asyncio.run(_route(settings, log, announce))


async def _route(settings: RouterSettings, log: Log, announce: Callable[[int], None]) -> bool:
    raise_file_limit()
    sock, stopping = bind(settings.host, settings.port, default=_PORT), until_signal()
    async with _session(settings) as session:
        front = Front(settings, session, log)
        await front.fleet.probe(session)
        watch = asyncio.create_task(front.fleet.watch(session))
        runner = await open_front(front.app(), sock)
        announce(sock.getsockname()[1])
        await stopping.wait()
        front.drain()
        is_clean = await until_ended(lambda: front.num_open, settings.drain_s)
        watch.cancel()
        if not is_clean:
            front.forwarder.cut()
            await until_ended(lambda: front.num_open, _CUT_S)
        await runner.cleanup()
    with suppress(asyncio.CancelledError):
        await watch
    log.event("stop", clean=is_clean)
    return is_clean


def _session(settings: RouterSettings) -> aiohttp.ClientSession:
    """A connection a request: one that was kept may be dead, and a request lost on it is not
    known to be new to the replica, so it could not be tried again."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, force_close=True),
        timeout=aiohttp.ClientTimeout(
            total=None, sock_connect=_CONNECT_S, sock_read=settings.timeout_s
        ),
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
    )

"""An application on a socket, and the signal that ends it: the same for a server and a router."""

import asyncio
import logging
import signal
import socket
import time
from collections.abc import Callable

from aiohttp import web

_IDLE_SECONDS = 30  # that a connection gets to send a request, the first one or the next
_LINGER_SECONDS = 2  # what is left of a refused body is read and dropped
_GRACE_SECONDS = 0.5  # in which requests that were sent before a signal are read, and refused


def until_signal() -> asyncio.Event:
    """Set by the first SIGTERM or SIGINT; a second one ends the process at once."""
    loop, stopping = asyncio.get_running_loop(), asyncio.Event()

    def stop(name: signal.Signals) -> None:
        stopping.set()
        loop.remove_signal_handler(name)

    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stop, name)
    return stopping


async def until_ended(num_open: Callable[[], int], seconds: float) -> bool:
    """Waits for requests to end; false if some did not."""
    start, grace = time.monotonic(), min(_GRACE_SECONDS, seconds)
    while (gone := time.monotonic() - start) < grace or (num_open() and gone < seconds):
        await asyncio.sleep(0.02)
    return num_open() == 0


async def open_front(app: web.Application, sock: socket.socket) -> web.AppRunner:
    """Answers on a socket; `cleanup` of what is returned ends it."""
    front = web.AppRunner(
        app,
        handle_signals=False,
        handler_cancellation=True,  # a client that goes takes its request with it
        auto_decompress=False,
        access_log=None,
        logger=_silent(),
        keepalive_timeout=_IDLE_SECONDS,
        lingering_time=_LINGER_SECONDS,
        shutdown_timeout=1.0,
    )
    await front.setup()
    await web.SockSite(front, sock).start()
    return front


def _silent() -> logging.Logger:
    """aiohttp's own messages quote what clients sent; ours do not."""
    logger = logging.getLogger("rooflight.serve.http")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    return logger

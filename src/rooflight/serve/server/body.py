"""The JSON body of a request, read within bounds: time, bytes, encoding, depth, numbers."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import NoReturn

from aiohttp import hdrs, web

from rooflight.serve.server.fields import Json
from rooflight.serve.server.problem import ApiError, unavailable

_SECONDS = 30  # to send a body, however slowly


class Bodies:
    """Those that are on their way; of these nothing was begun, so an end does not wait for them."""

    def __init__(self) -> None:
        self._timers: set[asyncio.Timeout] = set()
        self._is_over = False

    @asynccontextmanager
    async def reading(self) -> AsyncGenerator[None]:
        """For as long as a body may take."""
        try:
            async with asyncio.timeout(_SECONDS) as timer:
                self._timers.add(timer)
                try:
                    yield
                finally:
                    self._timers.discard(timer)
        except TimeoutError:
            if self._is_over:
                raise unavailable("draining", "this server is about to stop") from None
            raise ApiError(408, "slow_body", f"the body took more than {_SECONDS} s") from None

    def end(self) -> None:
        """Those that are not here yet are refused."""
        self._is_over = True
        for timer in self._timers:
            timer.reschedule(asyncio.get_running_loop().time())


async def read_body(request: web.Request, *, most_bytes: int) -> bytes:
    """What should be JSON, or an `ApiError`; never more than `most_bytes` are held."""
    if request.headers.get(hdrs.CONTENT_ENCODING, "identity").lower() != "identity":
        raise ApiError(415, "unsupported_encoding", "send the body uncompressed")
    if request.content_type != "application/json":
        raise ApiError(415, "unsupported_media_type", "send Content-Type: application/json")
    return await _read(request, most_bytes)


async def _read(request: web.Request, most_bytes: int) -> bytes:
    too_large = ApiError(413, "body_too_large", f"the body is above {most_bytes} bytes")
    if (request.content_length or 0) > most_bytes:
        raise too_large
    body = bytearray()
    async for part in request.content.iter_any():
        body += part
        if len(body) > most_bytes:
            raise too_large
    return bytes(body)


def parse_json(body: bytes) -> Json:
    """Strict JSON in UTF-8: no NaN, no endless digits, no depth beyond a stack.

    >>> parse_json(b'{"n": 1}')
    {'n': 1}
    """
    try:
        return json.loads(body.decode("utf-8"), parse_constant=_refuse)
    except RecursionError:
        raise ApiError(400, "invalid_json", "the body is nested too deeply") from None
    except ValueError:
        raise ApiError(400, "invalid_json", "the body is not valid JSON in UTF-8") from None


def _refuse(word: str) -> NoReturn:
    raise ValueError(word)

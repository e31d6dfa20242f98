"""Answers to one reader, who must keep up: server-sent events (`Writer`), or a whole body."""

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import cast

from aiohttp import web

from rooflight.serve.server.fields import Json

_DONE = b"data: [DONE]\n\n"
_ENCODER = json.JSONEncoder(separators=(",", ":"))
_PART_BYTES = 1 << 16
_PART_ITEMS = 64  # of a list


class Writer:
    """A stream of events; headers go out with the first, so that a refusal can have a status."""

    def __init__(self, request: web.Request, seconds: float) -> None:
        self._request = request
        self._seconds = seconds  # that a reader may take to make room
        self._response = web.StreamResponse(headers={"Cache-Control": "no-cache"})
        self._response.content_type = "text/event-stream"

    @property
    def has_begun(self) -> bool:
        return self._response.prepared

    async def send(self, bodies: Sequence[Mapping[str, Json]]) -> None:
        await self._write(b"".join(map(_event, bodies)))

    async def end(self, bodies: Sequence[Mapping[str, Json]]) -> web.StreamResponse:
        """The last events."""
        await self._write(b"".join(map(_event, bodies)) + _DONE)
        return self._response

    async def _write(self, data: bytes) -> None:
        await write_part(self._request, self._response, data, self._seconds)


async def write_part(
    request: web.Request, response: web.StreamResponse, data: bytes, seconds: float
) -> None:
    """Waits while the socket is full, though not for ever: who does not read is cut off."""
    try:
        async with asyncio.timeout(seconds):
            if not response.prepared:
                await response.prepare(request)
            await response.write(data)
    except TimeoutError:
        if request.transport is not None:
            request.transport.abort()
        raise ConnectionResetError("a reader that does not read") from None


async def write_whole(
    request: web.Request,
    body: bytes,
    seconds: float,
    *,
    status: int = HTTPStatus.OK,
    headers: Mapping[str, str] | None = None,
) -> web.StreamResponse:
    """A body in parts, each of which the reader must make room for in so many seconds."""
    response = web.StreamResponse(status=status, headers=headers)
    response.content_length = len(body)
    for at in range(0, max(1, len(body)), _PART_BYTES):
        await write_part(request, response, body[at : at + _PART_BYTES], seconds)
    await response.write_eof()
    return response


def whole_json(value: Json) -> bytes:
    """As `json.dumps` writes it, in many calls: one call lets no other thread run until it is done.

    >>> whole_json({"a": [1, {"b": None}], "c": "d"})
    b'{"a": [1, {"b": null}], "c": "d"}'
    """
    return "".join(_texts(value)).encode()


def _texts(value: Json) -> Iterator[str]:
    if isinstance(value, dict) and value:
        for at, (name, member) in enumerate(cast(dict[str, Json], value).items()):
            yield ("{", ", ")[at > 0] + json.dumps(name) + ": "
            yield from _texts(member)
        yield "}"
    elif isinstance(value, list) and len(cast(list[Json], value)) > _PART_ITEMS:
        items = cast(list[Json], value)
        for at in range(0, len(items), _PART_ITEMS):
            yield ("[", ", ")[at > 0] + json.dumps(items[at : at + _PART_ITEMS])[1:-1]
        yield "]"
    elif isinstance(value, list) and value:
        for at, item in enumerate(cast(list[Json], value)):
            yield ("[", ", ")[at > 0]
            yield from _texts(item)
        yield "]"
    else:
        yield json.dumps(value)


def _event(body: Mapping[str, Json]) -> bytes:
    return b"data: " + _ENCODER.encode(body).encode() + b"\n\n"

"""`Writer`: server-sent events to one reader, who must keep up."""

import asyncio
import json
from collections.abc import Mapping, Sequence

from aiohttp import web

from rooflight.service.fields import Json

_DONE = b"data: [DONE]\n\n"
_ENCODER = json.JSONEncoder(separators=(",", ":"))


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
        """Waits while the socket is full, though not for ever: who does not read is cut off."""
        try:
            async with asyncio.timeout(self._seconds):
                if not self._response.prepared:
                    await self._response.prepare(self._request)
                await self._response.write(data)
        except TimeoutError:
            if self._request.transport is not None:
                self._request.transport.abort()
            raise ConnectionResetError("a reader that does not read") from None


def _event(body: Mapping[str, Json]) -> bytes:
    return b"data: " + _ENCODER.encode(body).encode() + b"\n\n"

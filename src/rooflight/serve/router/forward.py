"""One request on its way: to a replica, to another if the first had no room, and back.

Safe to try again is only what no replica has begun: no connection, 429 or 503, and no byte sent to
the client. A replica that breaks with a request in its hands may have been broken by it, so it is
not handed on. What is sent is whole: a body in one piece, a stream event by event; a stream that
breaks ends in an error event and no [DONE].
"""

import asyncio
import io
import json
import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, NamedTuple, cast  # Any: JSON of a client

import aiohttp
from aiohttp import hdrs, web

from rooflight.serve.router.counts import Counters
from rooflight.serve.router.fleet import Replicas, ReplicaState
from rooflight.serve.server.problem import ApiError
from rooflight.serve.server.writer import write_part, write_whole

# What requests share: a key from the beginning of a prompt or of a conversation.

_FIELD = re.compile(rb'"(prompt|messages)"\s*:\s*')
_MODEL = re.compile(rb'"model"\s*:\s*"([^"]{0,200})"')
_PROMPT_BYTES = 2048  # about 512 tokens of text
_MESSAGES_BYTES = 1 << 16
_MOST_MESSAGES = 8
_BETWEEN = re.compile(r"[\s,\[]*")
_DECODER = json.JSONDecoder()


def prefix_key(body: bytes, authorization: str) -> bytes:
    """Equal for requests of one API key to one model that begin alike.

    >>> first = b'{"messages": [{"role": "user", "content": "Hi"}], "n": 1}'
    >>> later = b'{"messages":[{"role":"user","content":"Hi"}, {"role":"assistant"}], "seed": 7}'
    >>> prefix_key(first, "") == prefix_key(later, "") != prefix_key(first, "Bearer x")
    True
    """
    model = _MODEL.search(body[:_MESSAGES_BYTES])
    digest = blake2b(digest_size=16)
    parts = (authorization.encode("utf-8", "surrogateescape"), model[1] if model else b"")
    for part in (*parts, _beginning(body)):
        digest.update(len(part).to_bytes(8) + part)
    return digest.digest()


def _beginning(body: bytes) -> bytes:
    field = _FIELD.search(body)
    if field is None:
        return body[:_PROMPT_BYTES]
    start = field.end()
    if field[1] == b"prompt":
        return body[start : start + _PROMPT_BYTES]
    return _conversation(body[start : start + _MESSAGES_BYTES].decode("utf-8", "replace"))


def _conversation(text: str) -> bytes:
    """The messages up to the first of the user, or what can be read of them."""
    at, heads = 0, list[str]()
    while len(heads) < _MOST_MESSAGES:
        between = _BETWEEN.match(text, at)
        assert between is not None  # it may be empty
        try:
            message, at = _DECODER.raw_decode(text, between.end())
        except (ValueError, RecursionError):
            heads.append(text[at : at + _PROMPT_BYTES])
            break
        heads.append(json.dumps(message, sort_keys=True))
        if isinstance(message, dict) and cast(dict[str, Any], message).get("role") == "user":
            break
    return "".join(heads).encode("utf-8", "surrogatepass")


_TO_REPLICA = ("Accept", "Authorization", "Content-Type", "Traceparent", "X-Request-Timeout")
_AS_IT_IS = {hdrs.ACCEPT_ENCODING: "identity"}  # events are read on their way
_TO_CLIENT = ("Cache-Control", "Content-Type", "Retry-After", "X-Request-Id")
_NO_ROOM = (429, 503)
_MOST_ANSWER = 64 << 20
_MOST_EVENT = 1 << 20
_DEFAULT_RETRY_S = 1
_WRITE_S = 30.0  # that a client may take to make room


@dataclass(frozen=True, slots=True)
class ReplicaRefusal:
    """A replica that did not begin: a status, and what it said; 0 without a connection."""

    status: int
    retry_after_s: int = _DEFAULT_RETRY_S
    body: bytes = b""

    @property
    def reason(self) -> str:
        return str(self.status or "connect")


class WholeResponse(NamedTuple):
    """An answer in one piece."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class ClientGone(Exception):
    """The client left, or does not read."""


class Forwarder:
    """Takes requests to the replicas of a fleet."""

    def __init__(self, fleet: Replicas, session: aiohttp.ClientSession, counts: Counters) -> None:
        self._fleet, self._session, self._counts = fleet, session, counts
        self._timers: dict[asyncio.Timeout, ReplicaState] = {}

    def cut(self, replica: ReplicaState | None = None) -> None:
        """Ends all that is open, or all that one replica has; clients are told."""
        for timer, whose in self._timers.items():
            if replica is None or whose is replica:
                timer.reschedule(asyncio.get_running_loop().time())

    @asynccontextmanager
    async def _cuttable(self, replica: ReplicaState) -> AsyncGenerator[None]:
        async with asyncio.timeout(None) as timer:
            self._timers[timer] = replica
            try:
                yield
            finally:
                del self._timers[timer]

    async def forward(self, request: web.Request, body: bytes) -> web.StreamResponse:
        """The answer of the first replica that takes it."""
        key = prefix_key(body, request.headers.get(hdrs.AUTHORIZATION, ""))
        tried: set[str] = set()
        refusals: list[ReplicaRefusal] = []
        while (replica := self._fleet.pick(key, tried)) is not None:
            if refusals:
                self._counts.add("retries_total", f'reason="{refusals[-1].reason}"')
            elif replica.url != self._fleet.owner(key):
                self._counts.add("spilled_total")
            tried.add(replica.url)
            replica.in_flight += 1
            try:
                answer = await self._ask(replica, request, body)
            except (ClientGone, asyncio.CancelledError):
                self._counts.add("clients_gone_total")
                raise
            finally:
                replica.in_flight -= 1
            if not isinstance(answer, ReplicaRefusal):
                return answer
            refusals.append(answer)
        return _refuse(refusals)

    async def _ask(
        self, replica: ReplicaState, request: web.Request, body: bytes
    ) -> web.StreamResponse | ReplicaRefusal:
        try:
            async with self._cuttable(replica):
                upstream = await self._session.request(
                    request.method,
                    replica.url + request.rel_url.raw_path,
                    data=io.BytesIO(body) if body else None,  # sent in parts: stops nobody else
                    headers=_kept(request.headers, _TO_REPLICA) | _AS_IT_IS,
                    allow_redirects=False,
                )
            async with upstream:
                if upstream.headers.get(hdrs.CONTENT_ENCODING, "identity").lower() != "identity":
                    raise ApiError(502, "replica_encoding", "the replica compressed its answer")
                if upstream.status == 200 and upstream.content_type == "text/event-stream":
                    return await self._stream(replica, request, upstream)
                async with self._cuttable(replica):
                    answer = await _answer(upstream)
                return await _send(request, answer) if isinstance(answer, WholeResponse) else answer
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError):
            self._fleet.eject(replica, "no connection")
            return ReplicaRefusal(0)
        except TimeoutError:  # it may be busy with others: the probe knows
            raise ApiError(504, "replica_timeout", "it took too long") from None
        except (aiohttp.ClientError, OSError):  # dead, or rid of this client: the next one sees
            raise ApiError(502, "replica_broke", "the replica broke off") from None

    async def _stream(
        self, replica: ReplicaState, request: web.Request, upstream: aiohttp.ClientResponse
    ) -> web.StreamResponse:
        """Whole events as they come; headers leave with the first."""
        headers = _kept(upstream.headers, _TO_CLIENT)
        response = web.StreamResponse(status=upstream.status, headers=headers)
        left, is_done, why = b"", False, "the stream ended early"
        try:
            async with self._cuttable(replica):
                async for piece in upstream.content.iter_any():
                    events, left = whole_events(left + piece)
                    is_done = is_done or events.rstrip().endswith(b"data: [DONE]")
                    if events:
                        await _write(request, response, events)
        except TimeoutError:
            why = "it took too long"
        except (aiohttp.ClientError, OSError):
            why = "the replica broke off"
        if not is_done and not response.prepared:
            raise ApiError(502, "replica_broke", why)
        if not is_done:
            self._counts.add("broken_streams_total")
            error = ApiError(502, "replica_broke", f"{why}; what came is not the whole answer")
            await _write(request, response, b"data: " + json.dumps(error.body).encode() + b"\n\n")
        await response.write_eof()
        return response


def whole_events(data: bytes) -> tuple[bytes, bytes]:
    r"""Cuts after the last event that is complete; one that is too long is let through in parts.

    >>> whole_events(b"data: 1\n\ndata: 2\n\ndata: 3")
    (b'data: 1\n\ndata: 2\n\n', b'data: 3')
    """
    ends = (data.rfind(end) + len(end) for end in (b"\n\n", b"\r\n\r\n") if end in data)
    cut = max(ends, default=len(data) if len(data) > _MOST_EVENT else 0)
    return data[:cut], data[cut:]


def _kept(headers: Mapping[str, str], names: tuple[str, ...]) -> dict[str, str]:
    return {name: headers[name] for name in names if name in headers}


async def _write(request: web.Request, response: web.StreamResponse, data: bytes) -> None:
    try:
        await write_part(request, response, data, _WRITE_S)
    except (ConnectionError, aiohttp.ClientError):
        raise ClientGone from None


async def _whole(upstream: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for part in upstream.content.iter_any():
        body += part
        if len(body) > _MOST_ANSWER:
            raise ApiError(502, "answer_too_large", f"an answer above {_MOST_ANSWER} bytes")
    return bytes(body)


async def _answer(upstream: aiohttp.ClientResponse) -> WholeResponse | ReplicaRefusal:
    """In one piece, so that nothing has been sent if it breaks."""
    body = await _whole(upstream)
    if upstream.status in _NO_ROOM:
        word = upstream.headers.get(hdrs.RETRY_AFTER, "")
        wait_s = int(word) if word.isdecimal() and len(word) < 6 else _DEFAULT_RETRY_S
        return ReplicaRefusal(upstream.status, wait_s, body)
    return WholeResponse(upstream.status, _kept(upstream.headers, _TO_CLIENT), body)


async def _send(request: web.Request, answer: WholeResponse) -> web.StreamResponse:
    try:
        return await write_whole(
            request, answer.body, _WRITE_S, status=answer.status, headers=answer.headers
        )
    except (ConnectionError, aiohttp.ClientError):
        raise ClientGone from None


def _refuse(refusals: list[ReplicaRefusal]) -> web.Response:
    """All are full: 429 before 503, and the soonest that one will have room."""
    said = [r for r in refusals if r.status == 429] or [r for r in refusals if r.status]
    if not said:
        raise ApiError(503, "no_replica", "no replica is up", retry_after=_DEFAULT_RETRY_S)
    soonest = min(said, key=lambda refusal: refusal.retry_after_s)
    return web.Response(
        body=soonest.body,
        status=soonest.status,
        headers={"Retry-After": str(soonest.retry_after_s), "Content-Type": "application/json"},
    )

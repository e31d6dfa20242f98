"""The front: the routes that are passed on, within bounds, and health of its own."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import aiohttp
from aiohttp import hdrs, web

from rooflight.router.counts import Counts
from rooflight.router.fleet import Fleet, Replica
from rooflight.router.forward import ClientGone, Forwarder
from rooflight.service.keys import Key, find_key
from rooflight.service.logs import Log
from rooflight.service.problem import Problem

_POSTED = ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize")
_ASKED = ("/v1/models",)
_OPEN = ("/health", "/ready")
_MOST_BODY = 16 << 20
_MOST_HELD = 512 << 20  # bytes of all bodies at once
_BODY_S = 30.0  # to send a body, however slowly

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Settings:
    """What is routed where, and how."""

    urls: tuple[str, ...]
    keys: tuple[Key, ...] = ()
    probe_key: str | None = None  # shown to replicas when their metrics are read
    host: str = "127.0.0.1"
    port: int = 8080
    least_bound: int = 8
    timeout_s: float = 300.0  # without a byte from a replica
    drain_s: float = 60.0
    open_metrics: bool = False  # no key is asked for them


class Front:
    """The handlers, and what they share."""

    def __init__(self, settings: Settings, session: aiohttp.ClientSession, log: Log) -> None:
        self.settings, self.log = settings, log
        self.counts, self.is_draining, self.num_open = Counts(), False, 0
        self.fleet = Fleet(
            settings.urls,
            least_bound=settings.least_bound,
            probe_key=settings.probe_key,
            changed=self._changed,
            stuck=lambda replica: self.forwarder.cut(replica),
        )
        self.forwarder = Forwarder(self.fleet, session, self.counts)
        self._held = 0

    def _changed(self, replica: Replica, why: str) -> None:
        self.log.event("replica", url=replica.url, up=replica.is_up, why=why)

    def app(self) -> web.Application:
        """All routes there are."""
        app = web.Application(middlewares=[self._guard])
        app.add_routes([web.post(path, self._pass) for path in _POSTED])
        app.add_routes([web.get(path, self._pass, allow_head=False) for path in _ASKED])
        app.router.add_get("/health", self._health)
        app.router.add_get("/ready", self._ready)
        app.router.add_get("/metrics", self._metrics)
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """A key, errors in one shape, and a count of every answer."""
        try:
            authorization = request.headers.get(hdrs.AUTHORIZATION, "")
            keys = () if self._is_open(request.path) else self.settings.keys
            if keys and find_key(keys, authorization) is None:
                raise Problem(401, "invalid_api_key", "send Authorization: Bearer KEY")
            response = await handler(request)
        except Problem as problem:
            response = _answer(problem)
        except ClientGone:
            response = web.Response(status=499)  # nobody reads it; it is counted
        except web.HTTPException as error:
            response = _answer(Problem(error.status, "bad_request", error.reason))
        self.counts.add("requests_total", f'status="{response.status}"')
        return response

    def _is_open(self, path: str) -> bool:
        return path in _OPEN or (self.settings.open_metrics and path == "/metrics")

    async def _pass(self, request: web.Request) -> web.StreamResponse:
        if self.is_draining:
            raise Problem(503, "draining", "this router is stopping", retry_after=5)
        body = bytearray()
        self.num_open += 1
        try:
            try:
                async with asyncio.timeout(_BODY_S):
                    await self._read(request, body)
            except TimeoutError:
                raise Problem(408, "slow_body", f"the body took over {_BODY_S:g} s") from None
            return await self.forwarder.forward(request, bytes(body))
        finally:
            self.num_open -= 1
            self._held -= len(body)

    async def _read(self, request: web.Request, body: bytearray) -> None:
        if request.headers.get(hdrs.CONTENT_ENCODING, "identity").lower() != "identity":
            raise Problem(415, "unsupported_encoding", "send the body uncompressed")
        async for part in request.content.iter_any():
            body += part
            self._held += len(part)
            if len(body) > _MOST_BODY:
                raise Problem(413, "body_too_large", f"the body is above {_MOST_BODY} bytes")
            if self._held > _MOST_HELD:
                raise Problem(429, "overloaded", "too much is on its way", retry_after=1)

    async def _health(self, request: web.Request) -> web.Response:
        return web.json_response({"status": "live"})

    async def _ready(self, request: web.Request) -> web.Response:
        up = sum(replica.is_up for replica in self.fleet.replicas.values())
        if self.is_draining or not up:
            raise Problem(503, "not_ready", "stopping, or no replica is up", retry_after=1)
        return web.json_response({"status": "ready", "replicas": up})

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(text=self.counts.text(self.fleet.replicas.values()))


def _answer(problem: Problem) -> web.Response:
    return web.json_response(problem.body, status=problem.status, headers=problem.headers)

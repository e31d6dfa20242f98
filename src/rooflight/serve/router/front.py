"""The front: the routes that are passed on, within bounds, and health of its own."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import aiohttp
from aiohttp import hdrs, web

from rooflight.serve.router.counts import Counters
from rooflight.serve.router.fleet import Replicas, ReplicaState
from rooflight.serve.router.forward import ClientGone, Forwarder
from rooflight.serve.server.address import check_name
from rooflight.serve.server.body import Bodies
from rooflight.serve.server.fairness import Shares
from rooflight.serve.server.keys import NOBODY, Key, find_key
from rooflight.serve.server.logs import Log
from rooflight.serve.server.problem import ApiError

_POSTED = ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize")
_ASKED = ("/v1/models", "/v1/models/{id}")
_OPEN = ("/health", "/ready")
_MOST_BODY = 16 << 20
_MOST_HELD = 512 << 20  # bytes of all bodies at once, shared evenly between keys
_KEY = web.RequestKey("key", str)  # of a request: who asks

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class RouterSettings:
    """What is routed where, and how."""

    urls: tuple[str, ...]
    keys: tuple[Key, ...] = ()
    probe_key: str | None = None  # shown to replicas when their metrics are read
    host: str = "127.0.0.1"
    port: int | None = None  # None: the default, or else one that is free
    least_bound: int = 8
    timeout_s: float = 300.0  # without a byte from a replica
    drain_s: float = 60.0
    open_metrics: bool = False  # no key is asked for them


class Front:
    """The handlers, and what they share."""

    def __init__(self, settings: RouterSettings, session: aiohttp.ClientSession, log: Log) -> None:
        self.settings, self.log = settings, log
        self.counts, self.is_draining, self.num_open = Counters(), False, 0
        self.fleet = Replicas(
            settings.urls,
            least_bound=settings.least_bound,
            probe_key=settings.probe_key,
            changed=self._changed,
            stuck=lambda replica: self.forwarder.cut(replica),
        )
        self.forwarder = Forwarder(self.fleet, session, self.counts)
        self._bodies = Bodies()
        is_shared = len(settings.keys) > 1
        self._held = Shares(_MOST_HELD if is_shared else 2 * _MOST_HELD)  # half is the most of one

    def drain(self) -> None:
        """Takes no more requests, nor bodies that are not here yet."""
        self.is_draining = True
        self._bodies.end()

    def _changed(self, replica: ReplicaState, why: str) -> None:
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
            if not self.settings.keys:
                check_name(request.headers.get(hdrs.HOST))
            authorization = request.headers.get(hdrs.AUTHORIZATION, "")
            keys = () if self._is_open(request.path) else self.settings.keys
            key = find_key(keys, authorization) if keys else NOBODY
            if key is None:
                raise ApiError(401, "invalid_api_key", "send Authorization: Bearer KEY")
            request[_KEY] = key.name
            response = await handler(request)
        except ApiError as problem:
            response = _answer(problem)
        except ClientGone:
            response = web.Response(status=499)  # nobody reads it; it is counted
        except web.HTTPException as error:
            response = _answer(ApiError(error.status, "bad_request", error.reason))
        self.counts.add("requests_total", f'status="{response.status}"')
        return response

    def _is_open(self, path: str) -> bool:
        return path in _OPEN or (self.settings.open_metrics and path == "/metrics")

    async def _pass(self, request: web.Request) -> web.StreamResponse:
        if self.is_draining:
            raise ApiError(503, "draining", "this router is stopping", retry_after=5)
        body = bytearray()
        self.num_open += 1
        try:
            async with self._bodies.reading():
                await self._read(request, body)
            return await self.forwarder.forward(request, bytes(body))
        finally:
            self.num_open -= 1
            self._held.leave(request[_KEY], len(body))

    async def _read(self, request: web.Request, body: bytearray) -> None:
        if request.headers.get(hdrs.CONTENT_ENCODING, "identity").lower() != "identity":
            raise ApiError(415, "unsupported_encoding", "send the body uncompressed")
        async for part in request.content.iter_any():
            if len(body) + len(part) > _MOST_BODY:
                raise ApiError(413, "body_too_large", f"the body is above {_MOST_BODY} bytes")
            if not self._held.may_enter(request[_KEY], len(part)):
                raise ApiError(429, "overloaded", "too much is on its way", retry_after=1)
            body += part
            self._held.enter(request[_KEY], len(part))

    async def _health(self, request: web.Request) -> web.Response:
        return web.json_response({"status": "live"})

    async def _ready(self, request: web.Request) -> web.Response:
        up = sum(replica.is_up for replica in self.fleet.replicas.values())
        if self.is_draining or not up:
            raise ApiError(503, "not_ready", "stopping, or no replica is up", retry_after=1)
        return web.json_response({"status": "ready", "replicas": up})

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(text=self.counts.text(self.fleet.replicas.values()))


def _answer(problem: ApiError) -> web.Response:
    return web.json_response(problem.body, status=problem.status, headers=problem.headers)

"""What every request goes through: a key, an id, a line in the log, errors in one shape.

Deny by default: a route is open only if it is on the list here.
"""

import time
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from uuid import uuid4

from aiohttp import hdrs, web

from rooflight.serve.http.service import Service
from rooflight.serve.server.address import check_name
from rooflight.serve.server.keys import NOBODY, Key, find_key
from rooflight.serve.server.logs import Value
from rooflight.serve.server.problem import ApiError, problem_of

# Spans of OpenTelemetry, where its API is installed: one a request, child of the caller's.

try:
    from opentelemetry import propagate, trace
except ImportError:  # an optional extra
    propagate = trace = None

Attributes = Mapping[str, str | int | float | bool]
Note = Callable[[Attributes], None]


@contextmanager
def request_span(route: str, headers: Mapping[str, str]) -> Generator[Note]:
    """A span while the block runs; what is yielded adds attributes to it."""
    if trace is None or propagate is None:
        yield lambda _: None
        return
    tracer = trace.get_tracer("rooflight.serve.http")
    with tracer.start_as_current_span(
        route,
        context=propagate.extract(headers),
        kind=trace.SpanKind.SERVER,
        record_exception=False,  # messages may hold what clients sent
        set_status_on_exception=False,
    ) as span:
        yield span.set_attributes


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
OPEN = frozenset({"/health", "/ready"})
SERVICE = web.AppKey("service", Service)
ID = "id"  # of the request, made here; in the log, in errors and in answers
KEY = "key"  # of the request: who asks
COUNTS = "counts"  # of the request: what else its line in the log says
_NAMES = {404: "no_such_route", 405: "method_not_allowed", 413: "body_too_large"}


@web.middleware
async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
    """The one way in and out."""
    service, route = request.app[SERVICE], _route(request)
    request[ID] = uuid4().hex
    with request_span(route, request.headers) as note:
        return await _guarded(service, request, handler, route, note)


async def _guarded(
    service: Service, request: web.Request, handler: Handler, route: str, note: Note
) -> web.StreamResponse:
    start, status, code, key = time.monotonic(), 499, "disconnected", NOBODY
    try:
        key = _key(service, request, route)
        request[KEY] = key
        response = await handler(request)
        status, code = response.status, ""
        return response
    except ConnectionError:  # nobody is left to tell
        raise
    except Exception as error:
        problem = _problem(error, service, route)
        status, code = problem.status, problem.code
        if status in (429, 503) and route not in OPEN:
            service.metrics.rejected(code)
        return _answer(problem, request[ID])
    finally:
        facts = {"status": status, "code": code, **_counts(request)}
        if route not in OPEN:  # probes come every second
            who = {"id": request[ID], "key": key.name, "route": route}
            seconds = round(time.monotonic() - start, 6)
            service.log.event("request", **who, seconds=seconds, **facts)
        note({name: value for name, value in facts.items() if value is not None})


def _counts(request: web.Request) -> dict[str, Value]:
    read: Callable[[], dict[str, Value]] | None = request.get(COUNTS)
    return {"body_bytes": request.content_length, **({} if read is None else read())}


def _route(request: web.Request) -> str:
    """As registered, never as typed: the raw path may hold anything."""
    resource = request.match_info.route.resource
    return resource.canonical if resource is not None else "unknown"


def _key(service: Service, request: web.Request, route: str) -> Key:
    keys = service.settings.keys
    is_open = route in OPEN or (service.settings.open_metrics and route == "/metrics")
    if not keys:
        check_name(request.headers.get(hdrs.HOST))
    if not keys or is_open:
        return NOBODY
    found = find_key(keys, request.headers.get(hdrs.AUTHORIZATION, ""))
    if found is None:
        raise ApiError(401, "invalid_api_key", "send Authorization: Bearer KEY")
    return found


def _problem(error: Exception, service: Service, route: str) -> ApiError:
    """Ours, or aiohttp's by its status; anything else is a bug, of which clients learn nothing."""
    if isinstance(error, ApiError | TimeoutError):
        return problem_of(error)
    if isinstance(error, web.HTTPException) and error.status < 500:
        found = ApiError(error.status, _NAMES.get(error.status, "bad_request"), error.reason)
        found.headers |= {n: v for n, v in error.headers.items() if n == hdrs.ALLOW}
        return found
    frames = error.__traceback__
    while frames is not None and frames.tb_next is not None:
        frames = frames.tb_next
    place = f"{frames.tb_frame.f_code.co_name}:{frames.tb_lineno}" if frames else ""
    service.log.event("bug", route=route, error=type(error).__name__, place=place)
    return ApiError(500, "internal_error", "an error of this server")


def _answer(problem: ApiError, id: str) -> web.Response:
    headers = {**problem.headers, "X-Request-Id": id}
    return web.json_response(problem.body, status=problem.status, headers=headers)

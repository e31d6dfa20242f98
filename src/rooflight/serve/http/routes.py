"""The routes: each reads a body, asks the service, writes an answer."""

import asyncio
import json
import math
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar

from aiohttp import web

from rooflight import __version__
from rooflight.serve.http.answers import ChoiceDelta, ResponseBuilder
from rooflight.serve.http.asked import GenerationRequest, read_chat, read_completion
from rooflight.serve.http.generation import Generation, merge
from rooflight.serve.http.middleware import COUNTS, ID, KEY, SERVICE, guard
from rooflight.serve.http.protocol import Protocol
from rooflight.serve.http.service import Service
from rooflight.serve.server.body import parse_json, read_body
from rooflight.serve.server.fields import Fields, Json
from rooflight.serve.server.keys import Key
from rooflight.serve.server.problem import ApiError, invalid, problem_of
from rooflight.serve.server.writer import Writer, whole_json, write_whole

T = TypeVar("T")
_SMALL_BYTES = 1 << 14  # of a body that takes milliseconds to look through
_DOCUMENT = web.AppKey("document", bytes)  # which does not change
_TIMEOUT = "X-Request-Timeout"  # seconds, of one request


def make_app(service: Service) -> web.Application:
    """All routes there are; nothing is added later."""
    app = web.Application(middlewares=[guard])
    app[SERVICE] = service
    with_keys = bool(service.settings.keys)
    described = openapi(service.protocol, version=__version__, with_keys=with_keys)
    app[_DOCUMENT] = json.dumps(described).encode()
    app.add_routes(
        [web.get("/health", health), web.get("/ready", ready), web.get("/metrics", metrics)]
    )
    if service.prefill_server is not None:
        app.router.add_get("/prefill", prefill, allow_head=False)
        return app
    app.add_routes(
        [
            web.get("/openapi.json", document),
            web.get("/v1/models", models),
            web.get("/v1/models/{id}", model),
            web.post("/v1/completions", complete),
            web.post("/v1/chat/completions", chat),
            web.post("/tokenize", tokenize),
            web.post("/detokenize", detokenize),
        ]
    )
    return app


async def health(request: web.Request) -> web.Response:
    """Alive: the engine makes progress, however much waits."""
    return _status(request.app[SERVICE].health.is_live, "live", "stuck")


async def ready(request: web.Request) -> web.Response:
    """Warm, alive, and not about to stop."""
    service = request.app[SERVICE]
    return _status(service.health.is_ready and not service.is_draining, "ready", "not ready")


def _status(is_good: bool, good: str, bad: str) -> web.Response:
    if not is_good:
        raise ApiError(503, bad.replace(" ", "_"), bad, retry_after=1)
    return web.json_response({"status": good})


async def metrics(request: web.Request) -> web.Response:
    text = request.app[SERVICE].metrics.text()
    return web.Response(body=text, content_type="text/plain", charset="utf-8")


async def document(request: web.Request) -> web.Response:
    return web.Response(body=request.app[_DOCUMENT], content_type="application/json")


async def models(request: web.Request) -> web.Response:
    return web.json_response({"object": "list", "data": [_entry(request.app[SERVICE])]})


async def model(request: web.Request) -> web.Response:
    """The one there is, by its name."""
    service = request.app[SERVICE]
    service.protocol.chat.members["model"].read(request.match_info["id"], "model")
    return web.json_response(_entry(service))


def _entry(service: Service) -> dict[str, Json]:
    most, name = service.protocol.bounds.max_model_tokens, service.settings.name
    entry = {"id": name, "object": "model", "created": 0, "owned_by": "local"}
    return {**entry, "max_model_len": most}


async def prefill(request: web.Request) -> web.StreamResponse:
    """A prompt for another server: see `prefill_route`."""
    service = request.app[SERVICE]
    assert service.prefill_server is not None
    with service.entered(request[KEY]):
        charge = partial(service.charged, request[KEY])
        bounds = service.protocol.bounds
        return await service.prefill_server.talk(request, bounds, next(service.ids), charge)


async def tokenize(request: web.Request) -> web.Response:
    async with _entered(request, lambda p, body: p.tokenize.read(body)) as (service, found):
        with_special = found["add_special_tokens"] is not False
        async with asyncio.timeout(_seconds(request, service)):
            tokens = await service.encode(request[KEY], found["prompt"], with_special=with_special)
        most = service.protocol.bounds.max_model_tokens
        return web.json_response({"count": len(tokens), "max_model_len": most, "tokens": tokens})


async def detokenize(request: web.Request) -> web.Response:
    async with _entered(request, lambda p, body: p.detokenize.read(body)) as (service, found):
        decode = partial(service.tokenizer.decode, found["tokens"])
        async with asyncio.timeout(_seconds(request, service)):
            text = await service.in_worker(request[KEY], decode)
        return web.json_response({"prompt": text})


async def complete(request: web.Request) -> web.StreamResponse:
    async with _entered(request, read_completion) as (service, asked):
        return await _generate(request, service, asked)


async def chat(request: web.Request) -> web.StreamResponse:
    async with _entered(request, read_chat) as (service, asked):
        return await _generate(request, service, asked)


@asynccontextmanager
async def _entered(
    request: web.Request, read: Callable[[Protocol, Json], T]
) -> AsyncGenerator[tuple[Service, T]]:
    """What a request asks for that was let in; a large body is looked through by a worker."""
    service, key = request.app[SERVICE], request[KEY]
    protocol = service.protocol
    with service.entered(key):
        async with service.bodies.reading():
            body = await read_body(request, most_bytes=protocol.bounds.max_body_bytes)

        def asked() -> T:
            return read(protocol, parse_json(body))

        is_small = len(body) <= _SMALL_BYTES
        yield service, asked() if is_small else await service.in_worker(key, asked)


def _seconds(request: web.Request, service: Service) -> float:
    """That a request may take: the operator's, or its own if that is shorter."""
    most = service.settings.deadline_s
    try:
        asked = float(request.headers.get(_TIMEOUT, most))
    except ValueError:
        asked = math.nan
    if not asked > 0:
        raise invalid(_TIMEOUT, "not a number of seconds above 0")
    return min(asked, most)


async def _generate(
    request: web.Request, service: Service, asked: GenerationRequest
) -> web.StreamResponse:
    name, id = service.settings.name, request[ID]
    answer = ResponseBuilder(asked.kind, name, service.tokenizer, asked.logprobs, id)
    deadline = asyncio.get_running_loop().time() + _seconds(request, service)
    async with service.generation(asked, request[KEY], deadline) as generation:
        request[COUNTS] = generation.counts
        pieces = generation.pieces(deadline)
        if asked.stream:
            writer = Writer(request, service.settings.write_s)
            return await _stream(writer, asked, answer, generation, pieces)
        body = await _whole(service, request[KEY], answer, generation, pieces)
        headers = {"Content-Type": "application/json; charset=utf-8"}
        return await write_whole(request, body, service.settings.write_s, headers=headers)


async def _whole(
    service: Service,
    key: Key,
    answer: ResponseBuilder,
    generation: Generation,
    pieces: AsyncIterator[list[ChoiceDelta]],
) -> bytes:
    """Put together away from the event loop: with log probabilities it may have megabytes."""
    parts: list[list[ChoiceDelta]] = [[] for _ in generation.choices]
    async for some in pieces:
        for piece in some:
            parts[piece.index].append(piece)

    def body() -> bytes:
        return whole_json(answer.whole([merge(part) for part in parts], generation.usage))

    return await service.in_worker(key, body)


async def _stream(
    writer: Writer,
    asked: GenerationRequest,
    answer: ResponseBuilder,
    generation: Generation,
    pieces: AsyncIterator[list[ChoiceDelta]],
) -> web.StreamResponse:
    """Events as they come, then the usage if it was asked for; an error ends them as an event."""
    try:
        async for some in pieces:
            await writer.send([answer.chunk(p, with_usage=asked.include_usage) for p in some])
        last = [answer.usage_chunk(generation.usage)] if asked.include_usage else []
    except (ApiError, TimeoutError) as error:
        if not writer.has_begun:
            raise
        last = [problem_of(error).body]
    return await writer.end(last)


# The OpenAPI document, written from the fields that validate requests.

Document = dict[str, Any]  # JSON
_ERROR: Document = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": "string"},
            },
        }
    },
}
_REFUSED = ("400", "401", "404", "405", "408", "413", "415", "429", "503")
_USAGE = {
    "type": "object",
    "required": ["prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details"],
}


def openapi(protocol: Protocol, *, version: str, with_keys: bool) -> Document:
    """Version 3.1, for clients, gateways and fuzzers."""
    paths = {
        "/v1/completions": _post("completion", protocol.completion, _answer(), streams=True),
        "/v1/chat/completions": _post("chat", protocol.chat, _answer(), streams=True),
        "/tokenize": _post("tokenize", protocol.tokenize, _object("tokens", "count")),
        "/detokenize": _post("detokenize", protocol.detokenize, _object("prompt")),
        "/v1/models": _get("models", _object("object", "data")),
        "/v1/models/{id}": _get("model", _object("id", "object"), names=("id",)),
        "/health": _get("health", _object("status"), is_open=True),
        "/ready": _get("ready", _object("status"), is_open=True),
        "/metrics": _get("metrics", None),
        "/openapi.json": _get("openapi", _object("openapi", "paths")),
    }
    document: Document = {
        "openapi": "3.1.0",
        "info": {"title": "Rooflight", "version": version},
        "paths": paths,
        "components": {"schemas": {"Error": _ERROR}},
    }
    if with_keys:
        document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"key": []}]
    return document


def _object(*required: str) -> Document:
    return {"type": "object", "required": list(required)}


def _answer() -> Document:
    form = _object("id", "object", "created", "model", "choices", "usage")
    return {**form, "properties": {"usage": _USAGE, "choices": {"type": "array"}}}


def _post(name: str, fields: Fields, answer: Document, *, streams: bool = False) -> Document:
    content: Document = {"application/json": {"schema": answer}}
    if streams:
        content["text/event-stream"] = {}
    body = {"required": True, "content": {"application/json": {"schema": fields.schema()}}}
    done = {"description": "done", "content": content}
    return {"post": {"operationId": name, "requestBody": body, "responses": _responses(done)}}


def _get(
    name: str, answer: Document | None, *, is_open: bool = False, names: tuple[str, ...] = ()
) -> Document:
    kind = "text/plain" if answer is None else "application/json"
    form: Document = {"type": "string"} if answer is None else answer
    done = {"description": "done", "content": {kind: {"schema": form}}}
    operation: Document = {"operationId": name, "responses": _responses(done)}
    if names:
        form = {"in": "path", "required": True, "schema": {"type": "string"}}
        operation["parameters"] = [{"name": one, **form} for one in names]
    if is_open:
        operation["security"] = []
    return {"get": operation}


def _responses(done: Document) -> Document:
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    refused = {status: {"description": "refused", "content": error} for status in _REFUSED}
    return {"200": done, **refused}

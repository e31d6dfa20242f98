"""The routes: each reads a body, asks the service, writes an answer."""

import asyncio
import math
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from rooflight import __version__
from rooflight.service.answers import Answer, Piece
from rooflight.service.asked import Asked, read_chat, read_completion
from rooflight.service.body import read_json
from rooflight.service.fields import Json
from rooflight.service.generation import Generation, merge
from rooflight.service.middleware import COUNTS, ID, KEY, SERVICE, guard
from rooflight.service.openapi import openapi
from rooflight.service.problem import Problem, invalid, problem_of
from rooflight.service.service import Service
from rooflight.service.writer import Writer

_TIMEOUT = "X-Request-Timeout"  # seconds, of one request


def make_app(service: Service) -> web.Application:
    """All routes there are; nothing is added later."""
    app = web.Application(middlewares=[guard])
    app[SERVICE] = service
    app.add_routes(
        [
            web.get("/health", health),
            web.get("/ready", ready),
            web.get("/metrics", metrics),
        ]
    )
    if service.lender is not None:
        app.router.add_get("/prefill", prefill, allow_head=False)
        return app
    app.add_routes(
        [
            web.get("/openapi.json", document),
            web.get("/v1/models", models),
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
        raise Problem(503, bad.replace(" ", "_"), bad, retry_after=1)
    return web.json_response({"status": good})


async def metrics(request: web.Request) -> web.Response:
    text = request.app[SERVICE].metrics.text()
    return web.Response(body=text, content_type="text/plain", charset="utf-8")


async def document(request: web.Request) -> web.Response:
    service = request.app[SERVICE]
    with_keys = bool(service.settings.keys)
    return web.json_response(openapi(service.protocol, version=__version__, with_keys=with_keys))


async def models(request: web.Request) -> web.Response:
    service = request.app[SERVICE]
    most = service.protocol.bounds.max_model_tokens
    entry = {"id": service.settings.name, "object": "model", "created": 0, "owned_by": "local"}
    return web.json_response({"object": "list", "data": [{**entry, "max_model_len": most}]})


async def prefill(request: web.Request) -> web.StreamResponse:
    """A prompt for another server: see `prefill_route`."""
    service = request.app[SERVICE]
    assert service.lender is not None
    with service.entered(request[KEY]):
        return await service.lender.talk(request, service.protocol.bounds, next(service.ids))


async def tokenize(request: web.Request) -> web.Response:
    async with _entered(request) as (service, body):
        found = service.protocol.tokenize.read(body)
        with_special = found["add_special_tokens"] is not False
        tokens = await service.encode(found["prompt"], with_special=with_special)
        most = service.protocol.bounds.max_model_tokens
        return web.json_response({"count": len(tokens), "max_model_len": most, "tokens": tokens})


async def detokenize(request: web.Request) -> web.Response:
    async with _entered(request) as (service, body):
        tokens = service.protocol.detokenize.read(body)["tokens"]
        text = await service.in_worker(lambda: service.tokenizer.decode(tokens))
        return web.json_response({"prompt": text})


async def complete(request: web.Request) -> web.StreamResponse:
    async with _entered(request) as (service, body):
        return await _generate(request, service, read_completion(service.protocol, body))


async def chat(request: web.Request) -> web.StreamResponse:
    async with _entered(request) as (service, body):
        return await _generate(request, service, read_chat(service.protocol, body))


@asynccontextmanager
async def _entered(request: web.Request) -> AsyncGenerator[tuple[Service, Json]]:
    """The body of a request that was let in."""
    service = request.app[SERVICE]
    with service.entered(request[KEY]):
        most = service.protocol.bounds.max_body_bytes
        yield service, await read_json(request, most_bytes=most)


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


async def _generate(request: web.Request, service: Service, asked: Asked) -> web.StreamResponse:
    name, id = service.settings.name, request[ID]
    answer = Answer(asked.kind, name, service.tokenizer, asked.logprobs, id)
    deadline = asyncio.get_running_loop().time() + _seconds(request, service)
    async with service.generation(asked, request[KEY], deadline) as generation:
        request[COUNTS] = generation.counts
        pieces = generation.pieces(deadline)
        if asked.stream:
            writer = Writer(request, service.settings.write_s)
            return await _stream(writer, asked, answer, generation, pieces)
        return await _whole(answer, generation, pieces)


async def _whole(
    answer: Answer, generation: Generation, pieces: AsyncIterator[list[Piece]]
) -> web.Response:
    parts: list[list[Piece]] = [[] for _ in generation.choices]
    async for some in pieces:
        for piece in some:
            parts[piece.index].append(piece)
    return web.json_response(answer.whole([merge(part) for part in parts], generation.usage))


async def _stream(
    writer: Writer,
    asked: Asked,
    answer: Answer,
    generation: Generation,
    pieces: AsyncIterator[list[Piece]],
) -> web.StreamResponse:
    """Events as they come, then the usage if it was asked for; an error ends them as an event."""
    try:
        async for some in pieces:
            await writer.send([answer.chunk(p, with_usage=asked.include_usage) for p in some])
        last = [answer.usage_chunk(generation.usage)] if asked.include_usage else []
    except (Problem, TimeoutError) as error:
        if not writer.has_begun:
            raise
        last = [problem_of(error).body]
    return await writer.end(last)

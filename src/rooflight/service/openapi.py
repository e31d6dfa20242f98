"""The OpenAPI document, written from the very fields that validate requests."""

from typing import Any

from rooflight.service.fields import Fields
from rooflight.service.protocol import Protocol

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


def _get(name: str, answer: Document | None, *, is_open: bool = False) -> Document:
    kind = "text/plain" if answer is None else "application/json"
    form: Document = {"type": "string"} if answer is None else answer
    done = {"description": "done", "content": {kind: {"schema": form}}}
    operation: Document = {"operationId": name, "responses": _responses(done)}
    if is_open:
        operation["security"] = []
    return {"get": operation}


def _responses(done: Document) -> Document:
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    refused = {status: {"description": "refused", "content": error} for status in _REFUSED}
    return {"200": done, **refused}

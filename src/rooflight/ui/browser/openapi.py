"""The API of the explorer as an OpenAPI document, made from the fields of its views."""

from collections.abc import Sequence

from rooflight import __version__
from rooflight.ui.browser.view import Field, View

_SCHEMAS: dict[str, object] = {
    "answer": {
        "type": "object",
        "required": ["view", "question", "figures", "tables", "pictures", "sentences", "command"],
        "properties": {
            "view": {"type": "string"},
            "question": {"type": "object", "additionalProperties": {"type": "string"}},
            "figures": {"type": "object"},
            "tables": {"type": "object"},
            "pictures": {"type": "object", "additionalProperties": {"type": "string"}},
            "films": {"type": "object"},
            "sentences": {"type": "array", "items": {"type": "string"}},
            "command": {"type": "string"},
        },
    },
    "error": {
        "type": "object",
        "required": ["error", "hint"],
        "properties": {"error": {"type": "string"}, "hint": {"type": "string"}},
    },
}


def openapi(views: Sequence[View]) -> dict[str, object]:
    """Every path of `/api` with every field of its view."""
    paths: dict[str, object] = {}
    for view in views:
        parameters = [_parameter(field) for field in view.fields]
        for part in ("", *(("/more",) if view.more else ())):
            path = f"/api/{view.name}{part}"
            paths[path] = _operation(view, parameters, "application/json")
            paths[f"{path}.csv"] = _operation(view, [*parameters, _selector("table")], "text/csv")
            paths[f"{path}.svg"] = _operation(
                view, [*parameters, _selector("picture")], "image/svg+xml"
            )
    return {
        "openapi": "3.1.0",
        "info": {"title": "rooflight explore", "version": __version__},
        "paths": paths,
        "components": {"schemas": _SCHEMAS},
    }


def _operation(
    view: View, parameters: Sequence[dict[str, object]], content: str
) -> dict[str, object]:
    schema = (
        {"$ref": "#/components/schemas/answer"}
        if content == "application/json"
        else {"type": "string"}
    )
    refused = {"application/json": {"schema": {"$ref": "#/components/schemas/error"}}}
    return {
        "get": {
            "summary": view.about,
            "parameters": list(parameters),
            "responses": {
                "200": {"description": "the answer", "content": {content: {"schema": schema}}},
                "422": {"description": "what is wrong with the question", "content": refused},
            },
        }
    }


def _parameter(field: Field) -> dict[str, object]:
    schema: dict[str, object] = {"type": "string", "default": field.default, "maxLength": 400}
    if field.kind == "choice":
        schema["enum"] = list(field.choices)
    if field.kind == "switch":
        schema["enum"] = ["no", "yes"]
    examples = (field.default, *field.stops, *field.choices)[:20]
    return {
        "name": field.name,
        "in": "query",
        "required": False,
        "description": f"{field.label}. {field.help}".strip(),
        "schema": schema,
        "examples": {f"{i}": {"value": value} for i, value in enumerate(examples)},
    }


def _selector(name: str) -> dict[str, object]:
    return {"name": name, "in": "query", "required": False, "schema": {"type": "string"}}

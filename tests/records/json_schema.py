"""The JSON Schema of a record, generated from its dataclasses, so that it cannot lag behind.

In: a dataclass. Out: a JSON Schema (draft 2020-12) for other programs and for editors.
"""

from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Literal, Union, get_args, get_origin

from rooflight.plan.file.codec import Kind, defaults, keys

Schema = dict[str, object]

_SCALARS: dict[type, Schema] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    NoneType: {"type": "null"},
}


def json_schema(kind: type, *, verb: str, schema: int) -> Schema:
    """The schema of a file as `codec.dump` writes it.

    >>> from rooflight.models.spec import Norm
    >>> json_schema(Norm, verb="norm", schema=1)["required"]
    ['schema', 'verb', 'kind', 'has_scale', 'has_bias', 'eps', 'adds_one']
    """
    defs: dict[str, Schema] = {}
    body = _record(kind, defs)
    frame: dict[str, Schema] = {"schema": {"const": schema}, "verb": {"const": verb}}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"rooflight {verb}",
        **_object(frame | _properties(kind, defs), kind),
        "description": body["description"],
        "$defs": dict(sorted(defs.items())),
    }


def _record(kind: type, defs: dict[str, Schema]) -> Schema:
    return {**_object(_properties(kind, defs), kind), "description": _sentence(kind)}


def _properties(kind: type, defs: dict[str, Schema]) -> dict[str, Schema]:
    return {key: _schema(part, defs) for key, part in keys(kind).items()}


def _object(properties: Mapping[str, Schema], kind: type) -> Schema:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": [key for key in properties if key not in defaults(kind)],
        "additionalProperties": False,
    }


def _schema(kind: Kind, defs: dict[str, Schema]) -> Schema:
    origin = get_origin(kind)
    if origin in (Union, UnionType):
        return {"anyOf": [_schema(part, defs) for part in get_args(kind)]}
    if origin is Literal:
        return {"enum": list(get_args(kind))}
    if origin is tuple:
        return {"type": "array", "items": _schema(get_args(kind)[0], defs)}
    if origin is not None and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": _schema(get_args(kind)[1], defs)}
    return _SCALARS[kind] if kind in _SCALARS else _reference(kind, defs)


def _reference(kind: type, defs: dict[str, Schema]) -> Schema:
    if kind.__name__ not in defs:
        defs[kind.__name__] = _record(kind, defs)
    return {"$ref": f"#/$defs/{kind.__name__}"}


def _sentence(kind: type) -> str:
    """The first line of a docstring."""
    return (kind.__doc__ or "").strip().partition("\n")[0]

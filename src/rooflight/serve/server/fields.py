"""The fields of a request: each reads a value within hard bounds, and writes its JSON schema.

One object does both, so the OpenAPI document and the server cannot disagree. A field that may be
left out has a default; null counts as left out, as OpenAI's clients send it.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

from rooflight.serve.server.problem import ApiError, invalid

Json = Any  # what `json.loads` gives; narrowed by the fields below
Schema = dict[str, Any]
UNSUPPORTED = "unsupported_parameter"


class JsonField(Protocol):
    """Something that a JSON value can be."""

    def read(self, value: Json, at: str) -> Json: ...
    def schema(self) -> Schema: ...


@dataclass(frozen=True, slots=True)
class Integer:
    """An integer from `least` to `most`; true and 1.5 are none."""

    least: int
    most: int

    def read(self, value: Json, at: str) -> int:
        if type(value) is float and value.is_integer():
            value = int(value)  # JSON has one kind of number: 2.0 is 2
        if type(value) is not int:
            raise invalid(at, "not an integer")
        if not self.least <= value <= self.most:
            raise invalid(at, f"not from {self.least} to {self.most}")
        return value

    def schema(self) -> Schema:
        return {"type": "integer", "minimum": self.least, "maximum": self.most}


@dataclass(frozen=True, slots=True)
class Real:
    """A finite number from `least` to `most`."""

    least: float
    most: float

    def read(self, value: Json, at: str) -> float:
        if type(value) not in (int, float):
            raise invalid(at, "not a number")
        if not (self.least <= value <= self.most and math.isfinite(value)):
            raise invalid(at, f"not from {self.least:g} to {self.most:g}")
        return float(value)

    def schema(self) -> Schema:
        return {"type": "number", "minimum": self.least, "maximum": self.most}


@dataclass(frozen=True, slots=True)
class Flag:
    def read(self, value: Json, at: str) -> bool:
        if type(value) is not bool:
            raise invalid(at, "not true or false")
        return value

    def schema(self) -> Schema:
        return {"type": "boolean"}


@dataclass(frozen=True, slots=True)
class Text:
    """Unicode text; half of a surrogate pair is none."""

    most: int
    least: int = 0

    def read(self, value: Json, at: str) -> str:
        if type(value) is not str:
            raise invalid(at, "not a string")
        if not self.least <= len(value) <= self.most:
            raise invalid(at, f"{len(value)} characters, not from {self.least} to {self.most}")
        if not value.isascii() and any("\ud800" <= c <= "\udfff" for c in value):
            raise invalid(at, "not valid Unicode")
        return value

    def schema(self) -> Schema:
        return {"type": "string", "minLength": self.least, "maxLength": self.most}


@dataclass(frozen=True, slots=True)
class Enumeration:
    """One of a few constants; a single one says that a feature is not there."""

    values: tuple[str | int | float | bool | None, ...]

    def read(self, value: Json, at: str) -> Json:
        for known in self.values:
            is_number = type(known) is not bool and isinstance(known, int | float)
            same_type = type(value) in (int, float) if is_number else type(value) is type(known)
            if same_type and value == known:
                return known
        named = " or ".join(repr(v) for v in self.values)
        raise invalid(at, f"only {named} is supported")

    def schema(self) -> Schema:
        return {"enum": list(self.values)}


@dataclass(frozen=True, slots=True)
class FreeObject:
    """Any object whose JSON has at most `most` characters."""

    most: int

    def read(self, value: Json, at: str) -> dict[str, Json]:
        if type(value) is not dict:
            raise invalid(at, "not an object")
        if len(json.dumps(value)) > self.most:
            raise invalid(at, f"above {self.most} characters")
        return cast(dict[str, Json], value)

    def schema(self) -> Schema:
        return {"type": "object"}


@dataclass(frozen=True, slots=True)
class TokenNumbers:
    """Numbers of at most `most` tokens, whose ids are the names of an object."""

    vocab: int
    number: Real
    most: int

    def read(self, value: Json, at: str) -> dict[int, float]:
        if type(value) is not dict:
            raise invalid(at, "not an object")
        given = cast(dict[str, Json], value)
        if len(given) > self.most:
            raise invalid(at, f"{len(given)} tokens, not at most {self.most}")
        for id in given:
            if not (id.isascii() and id.isdigit() and len(id) < 10 and int(id) < self.vocab):
                raise invalid(at, f"names must be token ids from 0 to {self.vocab - 1}")
        return {int(id): self.number.read(v, _join(at, id)) for id, v in given.items()}

    def schema(self) -> Schema:
        names = {"pattern": "^[0-9]{1,9}$", "maxLength": 9}
        form = {"type": "object", "maxProperties": self.most, "propertyNames": names}
        return {**form, "additionalProperties": self.number.schema()}


@dataclass(frozen=True, slots=True)
class Items:
    """A list of at most `most`."""

    item: JsonField
    most: int
    least: int = 0

    def read(self, value: Json, at: str) -> list[Json]:
        if type(value) is not list:
            raise invalid(at, "not a list")
        items = cast(list[Json], value)
        if not self.least <= len(items) <= self.most:
            raise invalid(at, f"{len(items)} items, not from {self.least} to {self.most}")
        read = self.item.read
        return [read(item, f"{at}[{i}]") for i, item in enumerate(items)]

    def schema(self) -> Schema:
        sizes = {"minItems": self.least, "maxItems": self.most}
        return {"type": "array", "items": self.item.schema(), **sizes}


@dataclass(frozen=True, slots=True)
class AnyOf:
    """The first that reads it."""

    fields: tuple[JsonField, ...]
    what: str

    def read(self, value: Json, at: str) -> Json:
        for one in self.fields:
            try:
                return one.read(value, at)
            except ApiError as problem:
                if problem.code == UNSUPPORTED:  # which says more
                    raise
        raise invalid(at, f"not {self.what}")

    def schema(self) -> Schema:
        return {"anyOf": [one.schema() for one in self.fields]}


@dataclass(frozen=True, slots=True)
class Fields:
    """An object with these members and no others."""

    members: Mapping[str, JsonField]
    required: Sequence[str] = ()
    defaults: Mapping[str, Json] = field(default_factory=dict[str, Json])

    def read(self, value: Json, at: str = "") -> dict[str, Json]:
        if type(value) is not dict:
            raise invalid(at or "body", "not an object")
        given = cast(dict[str, Json], value)
        for name in given:
            if name not in self.members:
                raise invalid(_join(at, name[:64]), "not a parameter that this server knows")
        found = {
            n: self.members[n].read(v, _join(at, n)) for n, v in given.items() if v is not None
        }
        for name in self.required:
            if name not in found:
                raise invalid(_join(at, name), "missing")
        return {**dict.fromkeys(self.members), **self.defaults, **found}

    def schema(self) -> Schema:
        members = {
            name: f.schema() if name in self.required else _nullable(f.schema())
            for name, f in self.members.items()
        }
        form: Schema = {"type": "object", "properties": members, "additionalProperties": False}
        return {**form, "required": list(self.required)} if self.required else form


@dataclass(frozen=True, slots=True)
class Unserved:
    """What this server does not do; said by some clients, and read where it changes nothing."""

    inner: JsonField
    what: str
    neutral: str

    def read(self, value: Json, at: str) -> Json:
        try:
            return self.inner.read(value, at)
        except ApiError:
            hint = f"leave {at} out, or send {self.neutral}"
            text = f"{at}: this server does not do {self.what}; {hint}"
            raise ApiError(400, UNSUPPORTED, text, param=at) from None

    def schema(self) -> Schema:
        return self.inner.schema()


def _join(at: str, name: str) -> str:
    return f"{at}.{name}" if at else name


def _nullable(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}

"""Typed dataclasses to JSON and back; small, strict, the same for every record.

In: a frozen dataclass, or text. Out: text, or the dataclass. A file holds every field of a record,
defaults too, so that it means the same under a later version; but a field that came later, whose
metadata says `may_be_absent`, stands only where it is not the default, so that older files hold.
What is missing, unknown or of the wrong type is an error that names the key by its path:
`memory.parts[2].nbytes`.

Fields may be str, bool, int, float, None, `Literal`, dataclasses, `tuple[T, ...]`,
`Mapping[str, T]` and unions of a few dataclasses that differ in their keys.
"""

import json
import math
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from functools import lru_cache
from types import NoneType, UnionType
from typing import (
    Any,
    Literal,
    NoReturn,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from rooflight.errors import ModelError, ParseError, RooflightError, UnknownNameError

Record = TypeVar("Record")
Kind = Any  # what an annotation says, such as `int | None`: Python has no type for these

_SCALARS = {str: "text", bool: "true or false", int: "a whole number", float: "a number"}
_HINT = "docs/plan-file.md and the JSON schema beside it list every key and its type"


def dump(record: object, *, verb: str, schema: int) -> str:
    """A record as text: the document of the verb that makes such records, fields in order."""
    document = {"schema": schema, "verb": verb, **cast(dict[str, object], encode(record))}
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


Migrate = Callable[[dict[str, Any]], dict[str, Any]]


def load(
    kind: type[Record],
    text: str,
    *,
    verb: str,
    schema: int,
    migrate: Mapping[int, Migrate] | None = None,
) -> Record:
    """Reads what `dump` wrote; a document of another verb or schema is refused.

    `migrate` makes documents of older schemas ones of this schema; a note says so on stderr.
    """
    document = _document(text)
    found, version = document.pop("verb", None), document.pop("schema", None)
    if found != verb:
        raise ParseError(f"verb is {found!r}, not {verb!r}", hint=f"give a file of the verb {verb}")
    if not isinstance(version, bool) and isinstance(version, int) and version in (migrate or {}):
        print(f"note: read schema {version} of a {verb} file as schema {schema}", file=sys.stderr)
        return decode(kind, _migrated((migrate or {})[version], document))
    if version != schema or isinstance(version, bool):
        raise ParseError(
            f"schema is {version!r}; this version of rooflight reads schema {schema}",
            hint="write the file anew with this version",
        )
    return decode(kind, document)


def _migrated(migrate: Migrate, document: dict[str, Any]) -> dict[str, Any]:
    try:
        return migrate(document)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ParseError(f"not a file of its schema: {error!r}", hint=_HINT) from None


def _document(text: str) -> dict[str, object]:
    try:
        value = json.loads(text, parse_constant=_refuse, object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        raise ParseError(f"not a JSON document: {error}", hint=_HINT) from None
    if not isinstance(value, dict):
        raise ParseError(f"not a JSON object but {_shown(value)}", hint=_HINT)
    return cast(dict[str, object], value)


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"{word} is not a number")


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"key {key!r} is there twice")
        found[key] = value
    return found


def encode(value: object, path: str = "") -> object:
    """Fields as JSON objects, tuples as arrays; a number that JSON cannot say is a bug of ours.

    >>> from rooflight.models.spec import Norm
    >>> encode(Norm())
    {'kind': 'rms', 'has_scale': True, 'has_bias': False, 'eps': 1e-05, 'adds_one': False}
    """
    if isinstance(value, float) and not math.isfinite(value):
        raise ModelError(f"{path} is {value}, which no file can hold")
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, Mapping):
        items = cast(Mapping[str, object], value).items()
        return {key: encode(item, _member(path, key)) for key, item in items}
    if isinstance(value, tuple):
        items = enumerate(cast(tuple[object, ...], value))
        return [encode(item, f"{path}[{i}]") for i, item in items]
    if is_dataclass(value):
        absent = defaults(type(value))
        members = {key: getattr(value, key) for key in keys(type(value))}
        shown = {k: v for k, v in members.items() if k not in absent or v != absent[k]}
        return {key: encode(item, _member(path, key)) for key, item in shown.items()}
    raise ModelError(f"{path} is a {type(value).__name__}, which no file can hold")


def decode(kind: type[Record], value: object, path: str = "") -> Record:
    """Reads JSON data as a type; the error names the path of what does not fit.

    >>> from rooflight.models.spec import Norm
    >>> decode(Norm, encode(Norm("layer"))).kind
    'layer'
    """
    return cast(Record, _read(kind, value, path))


def _read(kind: Kind, value: object, path: str) -> object:
    origin = get_origin(kind)
    if origin in (Union, UnionType):
        return _read_union(get_args(kind), value, path)
    if origin is Literal:
        return _read_literal(get_args(kind), value, path)
    if origin is tuple:
        return _read_tuple(get_args(kind)[0], value, path)
    if origin is not None and issubclass(origin, Mapping):
        return _read_mapping(get_args(kind)[1], value, path)
    read = _read_scalar if kind in _SCALARS else _read_record
    return read(kind, value, path)


def _read_scalar(kind: type, value: object, path: str) -> object:
    if kind is float and type(value) is int:
        value = _as_float(value)
    if type(value) is not kind or (kind is float and not math.isfinite(cast(float, value))):
        raise _wrong(path, value, _SCALARS[kind])
    return value


def _as_float(value: int) -> float:
    """Other writers print 2.0 as 2."""
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _read_literal(words: tuple[object, ...], value: object, path: str) -> object:
    if not any(value == word and type(value) is type(word) for word in words):
        raise _wrong(path, value, "one of " + ", ".join(map(repr, words)))
    return value


def _read_tuple(kind: Kind, value: object, path: str) -> tuple[object, ...]:
    if not isinstance(value, list):
        raise _wrong(path, value, "a list")
    items = enumerate(cast(list[object], value))
    return tuple(_read(kind, item, f"{path}[{i}]") for i, item in items)


def _read_mapping(kind: Kind, value: object, path: str) -> dict[str, object]:
    items = _members(value, path).items()
    return {key: _read(kind, item, _member(path, key)) for key, item in items}


def _read_union(kinds: tuple[Kind, ...], value: object, path: str) -> object:
    if value is None and NoneType in kinds:
        return None
    others = [kind for kind in kinds if kind is not NoneType]
    if len(others) == 1:
        return _read(others[0], value, path)
    members = _members(value, path)
    for kind in others:
        if set(keys(kind)) == set(members):
            return _read_record(kind, value, path)
    names = " or ".join(kind.__name__ for kind in others)
    raise ParseError(f"{path or 'the record'} must have the keys of {names}", hint=_HINT)


def _read_record(kind: type, value: object, path: str) -> object:
    members = _members(value, path)
    for key in members:
        if key not in keys(kind):
            raise _unknown(_member(path, key), key, keys(kind))
    for key in keys(kind):
        if key not in members and key not in defaults(kind):
            raise ParseError(f"{_member(path, key)} is missing", hint=_HINT)
    hints = keys(kind)
    parts = {key: _read(hints[key], item, _member(path, key)) for key, item in members.items()}
    try:
        return kind(**parts)
    except RooflightError as error:
        where = f"{path}: " if path else ""
        raise ParseError(f"{where}{error}", hint=error.hint or _HINT) from None


@lru_cache(maxsize=256)
def keys(kind: type) -> Mapping[str, Kind]:
    """The fields of a dataclass with their types, in order."""
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


@lru_cache(maxsize=256)
def defaults(kind: type) -> Mapping[str, object]:
    """The fields that a file may leave out, and what they are then."""
    return {f.name: f.default for f in fields(kind) if f.metadata.get("may_be_absent")}


def _members(value: object, path: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise _wrong(path, value, "an object")
    return cast(dict[str, object], value)


def _member(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _wrong(path: str, value: object, wanted: str) -> ParseError:
    return ParseError(f"{path or 'the record'} is {_shown(value)}, not {wanted}", hint=_HINT)


def _unknown(path: str, key: str, known: Iterable[str]) -> ParseError:
    return ParseError(f"{path} is not a key", hint=UnknownNameError("key", key, known).hint)


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:37] + "..."

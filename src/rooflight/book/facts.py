"""Looks up what the catalog says: `v5p.hbm_bytes`, `v4:4x4x4.num_chips`, and products of such.

    v5p.detail.vregs * v5p.detail.vpu_sublanes     facts of a chip, as its file names them
    h100:8x128.dims.spine.egress_bytes_per_s       a property of a slice, a dim by its name

Sums of products, left to right; a plain number is itself. In: an expression. Out: value and lines.
"""

from collections.abc import Mapping
from typing import cast

from rooflight.book.derivation import Derivation, Line
from rooflight.book.entry import Entry, Value
from rooflight.hardware.catalog import load_chip
from rooflight.hardware.slice import parse_slice

_UNITS = {
    "bytes_per_s": "B/s",
    "per_host": "B/s",
    "bytes": "B",
    "bytes_per_sm": "B",
    "_hz": "Hz",
    "flops": "FLOP/s",
    "flops_sparse": "FLOP/s",
    "watts": "W",
    "dollars_per_hour": "USD/h",
}


def look_up(entry: Entry) -> Derivation:
    """The values of an entry that name a fact."""
    values: dict[str, Value] = {}
    lines: dict[Line, None] = {}  # in order, each once: facts of one chip recur
    for name, expected in entry.expected.items():
        if expected.fact:
            value = _value(expected.fact, lines, is_list=isinstance(expected.truth, tuple))
            values[name] = value
            if any(" " in text for text in expected.fact):
                lines[Line(_short(*expected.fact), value, expected.unit)] = None
    return Derivation(values, tuple(lines))


def _short(*expressions: str) -> str:
    """An expression by the last words of its facts, which the lines before it spell out."""
    return ", ".join(" ".join(w.split(".")[-1] for w in text.split()) for text in expressions)


def _value(expressions: tuple[str, ...], lines: dict[Line, None], *, is_list: bool) -> Value:
    found = [_sum(text, lines) for text in expressions]
    if not is_list:
        return found[0]
    flat = [n for value in found for n in (value if isinstance(value, tuple) else (value,))]
    return tuple(flat)


def _sum(text: str, lines: dict[Line, None]) -> Value:
    """The value of `a * b / c + d`; a lone shape stays a shape."""
    terms = text.split(" + ")
    if len(terms) == 1 and " " not in text:
        return _term(text, lines)
    return sum(_product(term, lines) for term in terms)


def _product(text: str, lines: dict[Line, None]) -> float:
    first, *rest = text.split()
    result = _number(first, lines)
    for sign, factor in zip(rest[::2], rest[1::2], strict=True):
        value = _number(factor, lines)
        result = result * value if sign == "*" else result / value
    return result


def _number(text: str, lines: dict[Line, None]) -> float:
    value = _term(text, lines)
    assert not isinstance(value, tuple), f"{text} is a shape, not a number"
    return value


def _term(text: str, lines: dict[Line, None]) -> Value:
    if text.isdigit():
        return int(text)
    root, *path = text.split(".")
    node: object = parse_slice(root) if ":" in root else load_chip(root)
    for part in path:
        node = _member(node, part)
    value = cast(Value, node)
    lines[Line(text + _source(root, path), value, unit_of(text))] = None
    return value


def _source(root: str, path: list[str]) -> str:
    """The catalog's key for the source of a fact; a property of a slice has none."""
    source = None if ":" in root else load_chip(root).source_of(".".join(path))
    return f" [{source.key}]" if source else ""


def _member(node: object, name: str) -> object:
    if isinstance(node, Mapping):
        return cast(Mapping[str, object], node)[name]
    if isinstance(node, tuple):  # the dims of a slice have names
        return next(d for d in cast(tuple[object, ...], node) if getattr(d, "name", "") == name)
    return getattr(node, name)


def unit_of(path: str) -> str:
    """The unit of a fact, told by its name; a plain count has none.

    >>> unit_of("v5p.hbm_bytes_per_s"), unit_of("v5e.flops.int8"), unit_of("h100.detail.sms")
    ('B/s', 'FLOP/s', '')
    """
    if ".flops." in path:
        return "FLOP/s"
    return next((unit for end, unit in _UNITS.items() if path.endswith(end)), "")

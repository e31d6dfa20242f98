"""Solves entries of the book through the library and holds the answers against the truth.

In: an `Entry`. Out: a `Solution`. A value that the catalog holds is looked up (`facts`); the rest
is derived by the recipe of the entry's chapter.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, cast

from rooflight.book import (
    applied_serving,
    chapter1,
    chapter2,
    chapter3,
    gpu_network,
    gpu_parallel,
    inference,
    mixed_parallel,
    model_flops,
    models,
    profiles,
    serving,
    tensor_parallel,
    training,
)
from rooflight.book.derivation import Derivation, Line, Recipe
from rooflight.book.entry import KINDS, Entry, ExpectedValue, Kind, Value
from rooflight.hardware.catalog import load_chip
from rooflight.hardware.slice import parse_slice
from rooflight.units import format_count, format_seconds, format_si

_SCALED = ("B", "B/s", "FLOP", "FLOP/s", "OP", "OP/s", "MAC/s", "Hz", "FLOP/USD", "W")
_PLAIN = ("", "1", "bool", "slice", "mesh", "chip", "tensor", "contraction", "axes", "dtype")

Status = Literal["as printed", "with erratum", "measured", "unexplained"]
STATUSES: tuple[Status, ...] = ("as printed", "with erratum", "measured", "unexplained")
REPRODUCED: tuple[Status, ...] = ("as printed", "with erratum")

_EXACT = 1e-9  # relative; a tolerance of zero still allows for the last bits of a float
_MODULES = (
    chapter1,
    chapter2,
    chapter3,
    serving,
    gpu_network,
    models,
    model_flops,
    training,
    tensor_parallel,
    mixed_parallel,
    gpu_parallel,
    inference,
    applied_serving,
    profiles,
)
RECIPES: Mapping[str, Recipe] = {
    name: recipe for module in _MODULES for name, recipe in module.RECIPES.items()
}


@dataclass(frozen=True, slots=True)
class BookAnswer:
    """One value: ours, the book's, and whether they agree."""

    name: str
    value: Value
    expected: ExpectedValue
    is_reproduced: bool  # never of a measurement

    @property
    def difference(self) -> float | None:
        """Of a prediction from what was measured, as a part of that; None of a derived value."""
        value, truth = self.value, self.expected.truth
        if not self.expected.is_measured or isinstance(value, tuple) or isinstance(truth, tuple):
            return None
        return value / truth - 1


@dataclass(frozen=True, slots=True)
class Solution:
    """An entry with the derivation of its values."""

    entry: Entry
    derivation: Derivation
    answers: tuple[BookAnswer, ...]

    @property
    def status(self) -> Status:
        """Whether the book is reproduced as it stands, after an erratum, or not at all.

        An entry with a measurement is only compared, if what can be derived of it is right.
        """
        if not all(a.is_reproduced for a in self.answers if not a.expected.is_measured):
            return "unexplained"
        if any(a.expected.is_measured for a in self.answers):
            return "measured"
        return "with erratum" if self.entry.errata else "as printed"


def solve(entry: Entry) -> Solution:
    """Derives every value of an entry.

    >>> from rooflight.book.entry import find
    >>> [(a.name, a.value) for a in solve(find("3.3").entries[0]).answers]
    [('bytes', 256), ('per_device', 64), ('t', 2e-06)]
    """
    found = look_up(entry)
    if entry.id in RECIPES:
        derived = RECIPES[entry.id](entry)
        values, lines = {**found.values, **derived.values}, (*found.lines, *derived.lines)
        found = Derivation(values, lines)
    answers = tuple(
        BookAnswer(
            name,
            value,
            expected,
            not expected.is_measured and agrees(value, expected.truth, entry.tolerance),
        )
        for name, expected in entry.expected.items()
        for value in [found.values[name]]
    )
    return Solution(entry, found, answers)


def agrees(value: Value, truth: Value, tolerance: float) -> bool:
    """Whether a value is the truth within a relative tolerance; shapes and flags must be equal."""
    if isinstance(value, tuple) or isinstance(truth, tuple):
        return value == truth
    if isinstance(truth, bool):
        return value is truth
    return math.isclose(value, truth, rel_tol=max(tolerance, _EXACT), abs_tol=0)


def count(solutions: Iterable[Solution]) -> dict[Kind, dict[Status, int]]:
    """How many entries of each kind ended how."""
    counts: dict[Kind, dict[Status, int]] = {k: dict.fromkeys(STATUSES, 0) for k in KINDS}
    for solution in solutions:
        counts[solution.entry.kind][solution.status] += 1
    return counts


# Looks up what the catalog says: `v5p.hbm_bytes`, `v4:4x4x4.num_chips`, and products of such.

_UNITS = {
    "bytes_per_s": "B/s",
    "per_host": "B/s",
    "bytes": "B",
    "bytes_per_sm": "B",
    "_hz": "Hz",
    "flops": "FLOP/s",
    "flops_sparse": "FLOP/s",
    "watts": "W",
    "prices.gcp": "USD/h",
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


def agreement(answer: BookAnswer, entry: Entry) -> str:
    """How our value stands to the book's, in a few words."""
    if answer.difference is not None:
        return f"measured; ours is {answer.difference:+.1%}"
    if not answer.is_reproduced:
        return "UNEXPLAINED: expected " + show(answer.expected.truth, answer.expected.unit)
    if any(answer.name in e.correct for e in entry.errata):
        return "erratum"
    if not entry.tolerance:
        return "equal"
    return f"within {100 * entry.tolerance:.3g} %"


def correction(entry: Entry, name: str, correct: Value) -> str:
    """What an erratum puts right, in a few words."""
    expected = entry.expected[name]
    wrong = "-" if expected.printed is None else show(expected.printed, expected.unit)
    return f"{name} is {show(correct, expected.unit)}, not {wrong}"


def show(value: Value | str | None, unit: str) -> str:
    """A value with its unit, as a person writes it.

    >>> show((16, 20, 28), "chips"), show(2.33e-5, "s"), show(61333.3, "token"), show(4, "x")
    ('16x20x28 chips', '23.3 us', '61,333 token', '4 x')
    """
    if isinstance(value, str) or value is None:
        return value or "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if unit == "s":
        return format_seconds(float(value)) if not isinstance(value, tuple) else str(value)
    if isinstance(value, tuple):
        text = "x".join(f"{n:g}" for n in value) if unit != "position" else str(value)
        return text if unit in (*_PLAIN, "position") else f"{text} {unit}"
    if unit in _SCALED:
        return format_si(value, unit)
    return _plain(value) if unit in _PLAIN else f"{_plain(value)} {unit}"


def _plain(value: float) -> str:
    if value == int(value) and abs(value) < 1e15:
        return format_count(int(value))
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"

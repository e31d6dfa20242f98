"""What the book says: entries, problems and chapters, as records.

An entry is one question of the book in our words: inputs with units, the values it prints, and,
where it is wrong, an erratum. The truth of a value is the erratum's, else the unrounded one, else
the printed one; `tolerance` says how loosely the book rounds.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, cast

from rooflight.dtypes import Dtype, parse_dtype
from rooflight.errors import UnknownNameError
from rooflight.hardware.chip import Source

_FOLDER = Path(__file__).parent
_FILES = (
    *("chapter1", "chapter2", "chapter3", "chapter4", "chapter5", "chapter6", "chapter7"),
    *("chapter8", "chapter9", "chapter10", "gpus", "slides"),
)

Row = Mapping[str, Any]  # a TOML table: its values are of any TOML type until read

Value = bool | int | float | tuple[float, ...]
Kind = Literal[
    "hardware",
    "roofline",
    "collective",
    "params",
    "flops",
    "memory",
    "train_plan",
    "inference",
    "serving",
    "cost",
    "profile",
]
KINDS: tuple[Kind, ...] = (
    *("hardware", "roofline", "collective", "params", "flops"),
    *("memory", "train_plan", "inference", "serving", "cost", "profile"),
)


@dataclass(frozen=True, slots=True)
class Input:
    """A number, shape or text that the question gives, with its unit."""

    value: Value | str
    unit: str


@dataclass(frozen=True, slots=True)
class ExpectedValue:
    """One value of an answer.

    `printed` is None where the book has only the formula; `later` is what the newer edition prints
    if it differs; `fact` says where the catalog has it, if it is a matter of looking up. What was
    `measured` is compared with our prediction, and cannot be reproduced.
    """

    unit: str
    printed: Value | None
    later: Value | None
    truth: Value
    fact: tuple[str, ...] = ()
    is_measured: bool = False


@dataclass(frozen=True, slots=True)
class Erratum:
    """Where the book is wrong: the editions, the right values by name, and why."""

    wrong_in: tuple[str, ...]
    correct: Mapping[str, Value]
    why: str


@dataclass(frozen=True, slots=True)
class Entry:
    """One question of the book with its answer."""

    id: str
    problem: str  # "3.2" if it belongs to a worked problem, else empty
    kind: Kind
    title: str
    editions: Mapping[str, Source]
    tolerance: float
    note: str
    inputs: Mapping[str, Input]
    later_inputs: Mapping[str, Input]
    expected: Mapping[str, ExpectedValue]
    errata: tuple[Erratum, ...]

    def text(self, name: str) -> str:
        return str(self.inputs[name].value)

    def number(self, name: str) -> float:
        value = self.inputs[name].value
        assert isinstance(value, int | float), f"{self.id}: input {name} is not a number"
        return value

    def whole(self, name: str) -> int:
        return int(self.number(name))

    def position(self, name: str) -> tuple[int, ...]:
        value = self.inputs[name].value
        assert isinstance(value, tuple), f"{self.id}: input {name} is not a position"
        return tuple(int(n) for n in value)

    def dtype(self, name: str = "dtype") -> Dtype:
        return parse_dtype(self.text(name))

    def given(self, **inputs: Input) -> "Entry":
        """The same question with some inputs added or replaced."""
        return replace(self, inputs={**self.inputs, **inputs})


@dataclass(frozen=True, slots=True)
class Problem:
    """A worked problem: the question in our words and the entries that answer it."""

    name: str
    title: str
    question: str
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Chapter:
    """One chapter, its entries in the order of the book."""

    name: str
    title: str
    problems: tuple[Problem, ...]
    entries: tuple[Entry, ...]


@lru_cache(maxsize=1)
def chapters() -> tuple[Chapter, ...]:
    """The whole book, read once."""
    return tuple(_chapter(tomllib.loads((_FOLDER / f"{f}.toml").read_text())) for f in _FILES)


def entries() -> tuple[Entry, ...]:
    """Every entry, in the order of the book."""
    return tuple(entry for chapter in chapters() for entry in chapter.entries)


def find(name: str) -> Problem | Chapter:
    """A problem (`3.2`), an entry as a problem of its own (`sharding.q2_1`), or a chapter (`3`).

    >>> [e.id for e in find("3.3").entries], find("3").title
    (['sharding.q3_latency_ag'], 'Sharded matrices')
    """
    known: dict[str, Problem | Chapter] = {}
    for chapter in chapters():
        known[chapter.name] = chapter
        known |= {e.id: Problem(e.id, e.title, "", (e,)) for e in chapter.entries}
        known |= {p.name: p for p in chapter.problems}
    if name not in known:
        raise UnknownNameError("problem", name, known, hint=_hint(name, known))
    return known[name]


def _hint(name: str, known: Mapping[str, object]) -> str:
    """The usual did-you-mean, or the list of problems: 300 names are too many to print."""
    hint = UnknownNameError("problem", name, known).hint
    return hint if hint.startswith("did you mean") else "`rooflight book` lists the problems"


def _chapter(table: Row) -> Chapter:
    editions = {
        name: Source(name, row["title"], row["url"], row["checked"])
        for name, row in table["editions"].items()
    }
    found = tuple(_entry(row, editions) for row in table["entries"])
    problems = tuple(
        Problem(name, row["title"], row["question"], tuple(e for e in found if e.problem == name))
        for name, row in table.get("problems", {}).items()
    )
    return Chapter(table["chapter"], table["title"], problems, found)


def _entry(row: Row, editions: Mapping[str, Source]) -> Entry:
    errata = tuple(
        Erratum(tuple(e["wrong_in"]), {k: _value(v) for k, v in e["correct"].items()}, e["why"])
        for e in row.get("errata", ())
    )
    corrected = {name: value for e in errata for name, value in e.correct.items()}
    return Entry(
        id=row["id"],
        problem=row.get("problem", ""),
        kind=row["kind"],
        title=row["title"],
        editions={name: editions[name] for name in row["editions"]},
        tolerance=row["tolerance"],
        note=row.get("note", ""),
        inputs=_inputs(row.get("inputs", {})),
        later_inputs=_inputs(row.get("later_inputs", {})),
        expected={k: _expected(v, corrected.get(k)) for k, v in row["expected"].items()},
        errata=errata,
    )


def _inputs(row: Row) -> dict[str, Input]:
    return {name: Input(_value(value), unit) for name, (value, unit) in row.items()}


def _expected(row: Row, corrected: Value | None) -> ExpectedValue:
    printed = _value(row.get("printed"))
    unrounded = _value(row.get("truth", row.get("printed")))
    fact = row.get("fact", [])
    return ExpectedValue(
        unit=row["unit"],
        printed=printed,
        later=_value(row.get("later")),
        truth=unrounded if corrected is None else corrected,
        fact=(fact,) if isinstance(fact, str) else tuple(fact),
        is_measured=row.get("measured", False),
    )


def _value(value: Any) -> Any:  # one TOML value: text, number, flag, list of numbers, or absent
    return tuple(cast(list[object], value)) if isinstance(value, list) else value

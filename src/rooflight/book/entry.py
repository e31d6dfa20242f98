"""What the book says: entries, problems and chapters, as records.

An entry is one question of the book in our words: inputs with units, the values it prints, and,
where it is wrong, an erratum. The truth of a value is the erratum's, else the unrounded one, else
the printed one; `tolerance` says how loosely the book rounds.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from rooflight.dtypes import Dtype, parse_dtype
from rooflight.hardware.chip import Source

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

"""Solves entries of the book through the library and holds the answers against the truth.

In: an `Entry`. Out: a `Solution`. A value that the catalog holds is looked up (`facts`); the rest
is derived by the recipe of the entry's chapter.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from rooflight.book import (
    applied_serving,
    chapter1,
    chapter2,
    chapter2_problems,
    chapter3,
    chapter3_problems,
    data_parallel,
    gpu_network,
    gpu_parallel,
    gpu_runs,
    gpus,
    inference,
    kv_cache,
    mixed_parallel,
    model_flops,
    models,
    profiles,
    serving,
    shards,
    tensor_parallel,
    training,
    training_runs,
)
from rooflight.book.derivation import Derivation, Recipe
from rooflight.book.entry import KINDS, Entry, Expected, Kind, Value
from rooflight.book.facts import look_up

Status = Literal["as printed", "with erratum", "measured", "unexplained"]
STATUSES: tuple[Status, ...] = ("as printed", "with erratum", "measured", "unexplained")
REPRODUCED: tuple[Status, ...] = ("as printed", "with erratum")

_EXACT = 1e-9  # relative; a tolerance of zero still allows for the last bits of a float
_MODULES = (
    chapter1,
    chapter2,
    chapter2_problems,
    chapter3,
    chapter3_problems,
    serving,
    gpus,
    gpu_network,
    models,
    model_flops,
    shards,
    training,
    data_parallel,
    tensor_parallel,
    mixed_parallel,
    training_runs,
    gpu_parallel,
    gpu_runs,
    kv_cache,
    inference,
    applied_serving,
    profiles,
)
RECIPES: Mapping[str, Recipe] = {
    name: recipe for module in _MODULES for name, recipe in module.RECIPES.items()
}


@dataclass(frozen=True, slots=True)
class Answer:
    """One value: ours, the book's, and whether they agree."""

    name: str
    value: Value
    expected: Expected
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
    answers: tuple[Answer, ...]

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

    >>> from rooflight.book.read import find
    >>> [(a.name, a.value) for a in solve(find("3.3").entries[0]).answers]
    [('bytes', 256), ('per_device', 64), ('t', 2e-06)]
    """
    found = look_up(entry)
    if entry.id in RECIPES:
        derived = RECIPES[entry.id](entry)
        values, lines = {**found.values, **derived.values}, (*found.lines, *derived.lines)
        found = Derivation(values, lines)
    answers = tuple(
        Answer(
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

"""The book's worked problems and numbers, each derived again through this library.

from rooflight.book.read import find
from rooflight.book.solve import solve
solve(find("3.2").entries[0]).answers
"""

from rooflight.book.derivation import Derivation, Line
from rooflight.book.entry import Chapter, Entry, Erratum, ExpectedValue, Input, Kind, Problem, Value
from rooflight.book.read import chapters, entries, find
from rooflight.book.solve import BookAnswer, Solution, Status, count, solve

__all__ = [
    "BookAnswer",
    "Chapter",
    "Derivation",
    "Entry",
    "Erratum",
    "ExpectedValue",
    "Input",
    "Kind",
    "Line",
    "Problem",
    "Solution",
    "Status",
    "Value",
    "chapters",
    "count",
    "entries",
    "find",
    "solve",
]

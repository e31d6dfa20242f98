"""One worked problem as a page: question, inputs, derivation line by line, our values, the book's.

In: a `Problem` and its solutions. Out: text without a trailing newline.
"""

from collections.abc import Mapping, Sequence
from textwrap import wrap

from rooflight.book.entry import Entry, Input, Problem
from rooflight.book.solve import BookAnswer, Solution, agreement, correction, show
from rooflight.ui.text.table import table

_WIDTH = 96


def page(problem: Problem, solutions: Sequence[Solution]) -> str:
    """The text of a problem."""
    shared = _shared_inputs([s.entry for s in solutions])
    head = [f"{problem.name}: {problem.title}", *wrap(problem.question, _WIDTH), *_given(shared)]
    blocks = ["\n".join(head), *(_entry(s, known=shared, problem=problem) for s in solutions)]
    return "\n\n".join((*blocks, _sources([s.entry for s in solutions])))


def _shared_inputs(entries: Sequence[Entry]) -> dict[str, Input]:
    """The inputs that every entry of a problem has: they are shown once."""
    first, *rest = entries
    return {
        name: value
        for name, value in first.inputs.items()
        if all(e.inputs.get(name) == value for e in rest)
    }


def _given(inputs: Mapping[str, Input]) -> list[str]:
    rows = [(name, show(i.value, i.unit)) for name, i in inputs.items()]
    return ["given", _indent(_columns(rows))] if rows else []


def _entry(solution: Solution, *, known: Mapping[str, Input], problem: Problem) -> str:
    entry = solution.entry
    blocks = [f"{entry.id}: {entry.title}"] if problem.name != entry.id else []
    blocks += _given({name: i for name, i in entry.inputs.items() if name not in known})
    if solution.derivation.lines:
        rows = [(line.text, show(line.value, line.unit)) for line in solution.derivation.lines]
        blocks.append("derivation\n" + _indent(_columns(rows)))
    blocks.append("answer\n" + _indent(_answers(solution)))
    blocks += _remarks(entry)
    return "\n".join(blocks)


def _indent(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())


def _columns(rows: Sequence[tuple[str, str]]) -> str:
    width = max(len(left) for left, _ in rows)
    return "\n".join(f"{left:<{width}}  {right}".rstrip() for left, right in rows)


def _answers(solution: Solution) -> str:
    has_later = any(a.expected.later is not None for a in solution.answers)
    header = ["value", "ours", "book", *(["2026-07"] if has_later else []), "agreement"]
    rows = [_answer(a, solution.entry, has_later=has_later) for a in solution.answers]
    return table(header, rows, align="l" + "r" * (len(header) - 2) + "l")


def _answer(answer: BookAnswer, entry: Entry, *, has_later: bool) -> list[str]:
    unit, expected = answer.expected.unit, answer.expected
    printed = "-" if expected.printed is None else show(expected.printed, unit)
    later = [show(expected.printed if expected.later is None else expected.later, unit)]
    ours = show(answer.value, unit)
    return [answer.name, ours, printed, *(later if has_later else []), agreement(answer, entry)]


def _remarks(entry: Entry) -> list[str]:
    lines: list[str] = []
    for erratum in entry.errata:
        right = ", ".join(correction(entry, *item) for item in erratum.correct.items())
        where = " and ".join(erratum.wrong_in)
        lines += wrap(f"erratum in {where}: {right}. {erratum.why}", _WIDTH)
    if entry.note:
        lines += wrap(f"note: {entry.note}", _WIDTH)
    return lines


def _sources(entries: Sequence[Entry]) -> str:
    titles: Mapping[str, None] = {s.title: None for e in entries for s in e.editions.values()}
    return "\n".join(f"source: {title}" for title in titles)

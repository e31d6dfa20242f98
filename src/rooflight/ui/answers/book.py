"""A worked problem of the book as `Answer`s: given, derived line by line, ours beside the book's.

In: a `Problem` and its solutions. Out: what terminal and explorer show of it.
"""

from collections.abc import Iterator, Mapping, Sequence

from rooflight.book.entry import Entry, Input, Problem
from rooflight.book.solve import BookAnswer, Solution, agreement, correction, show
from rooflight.ui.answer import Answer, Column, Table, Value

_GIVEN = Column("name", "given"), Column("shown", "value")
_LINES = Column("line", "derivation", is_wide=True), Column("shown", "value")
_WORDS = {
    "as printed": "Derived again, the book's answer comes out as printed",
    "with erratum": "Derived again, it comes out once an erratum is put right",
    "measured": "The book measured this; ours is a prediction beside it",
    "unexplained": "Ours differs from the book, and we do not know why",
}


def problem_answers(problem: Problem, solutions: Sequence[Solution]) -> Iterator[Answer]:
    """The question, then each number with its derivation and errata, then the sources."""
    shared = _shared_inputs(problem.entries)
    verdict = "; ".join(dict.fromkeys(_WORDS[s.status] for s in solutions))
    head = f"{problem.name}: {problem.title}. {verdict}"
    yield Answer((head, *filter(None, [problem.question])), tables=tuple(_given(shared, "")))
    for i, solution in enumerate(solutions):
        entry, key = solution.entry, f"_{i}" if i else ""
        own = {name: value for name, value in entry.inputs.items() if name not in shared}
        tables = (*_given(own, key), *_derivation(solution, key), _answers(solution, key))
        title = [f"{entry.id}: {entry.title}"] if problem.name != entry.id else []
        yield Answer(tuple(title), tables=tables)
        if remarks := tuple(_remarks(entry)):
            yield Answer(remarks)
    sources = dict.fromkeys(s.title for e in problem.entries for s in e.editions.values())
    yield Answer(tuple(f"Source: {title}" for title in sources))


def _shared_inputs(entries: Sequence[Entry]) -> dict[str, Input]:
    """The inputs that every entry of a problem has: they are shown once."""
    first, *rest = entries
    return {
        name: value
        for name, value in first.inputs.items()
        if all(e.inputs.get(name) == value for e in rest)
    }


def _given(inputs: Mapping[str, Input], key: str) -> Iterator[Table]:
    rows = tuple((name, show(i.value, i.unit)) for name, i in inputs.items())
    if rows:
        yield Table(f"given{key}", "Given", _GIVEN, rows)


def _derivation(solution: Solution, key: str) -> Iterator[Table]:
    rows = tuple((x.text, show(x.value, x.unit)) for x in solution.derivation.lines)
    if rows:
        caption = f"{solution.entry.title}: derivation"
        yield Table(f"derivation{key}", caption, _LINES, rows)


def _answers(solution: Solution, key: str) -> Table:
    has_later = any(a.expected.later is not None for a in solution.answers)
    columns = (
        *(Column("name", "answer"), Column("ours", "ours", is_right=True)),
        Column("book", "book", is_right=True),
        *([Column("later", "2026-07", is_right=True)] if has_later else []),
        Column("agreement", "agreement"),
    )
    rows = tuple(_answer(a, solution.entry, has_later) for a in solution.answers)
    caption = f"{solution.entry.title}: ours and the book's"
    return Table(f"answers{key}", caption, columns, rows)


def _answer(answer: BookAnswer, entry: Entry, has_later: bool) -> tuple[Value, ...]:
    unit, expected = answer.expected.unit, answer.expected
    later = show(expected.printed if expected.later is None else expected.later, unit)
    return (
        *(answer.name, show(answer.value, unit), show(expected.printed, unit)),
        *([later] if has_later else []),
        agreement(answer, entry),
    )


def _remarks(entry: Entry) -> Iterator[str]:
    for e in entry.errata:
        right = ", ".join(correction(entry, *item) for item in e.correct.items())
        yield f"Erratum in {' and '.join(e.wrong_in)}: {right}. {e.why}"
    if entry.note:
        yield f"Note: {entry.note}"

"""One worked problem as a page: question, inputs, derivation line by line, our values, the book's.

In: a `Problem` and its solutions. Out: text without a trailing newline.
"""

from collections.abc import Mapping, Sequence
from textwrap import wrap

from rooflight.book import Answer, Entry, Input, Problem, Solution, Value
from rooflight.report.table import table
from rooflight.units import format_count, format_seconds, format_si

_WIDTH = 96
_SCALED = ("B", "B/s", "FLOP", "FLOP/s", "OP", "OP/s", "MAC/s", "Hz", "FLOP/USD", "W")
_PLAIN = ("", "1", "bool", "slice", "mesh", "chip", "tensor", "contraction", "axes", "dtype")


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


def _answer(answer: Answer, entry: Entry, *, has_later: bool) -> list[str]:
    unit, expected = answer.expected.unit, answer.expected
    printed = "-" if expected.printed is None else show(expected.printed, unit)
    later = [show(expected.printed if expected.later is None else expected.later, unit)]
    ours = show(answer.value, unit)
    return [answer.name, ours, printed, *(later if has_later else []), agreement(answer, entry)]


def agreement(answer: Answer, entry: Entry) -> str:
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


def _remarks(entry: Entry) -> list[str]:
    lines: list[str] = []
    for erratum in entry.errata:
        right = ", ".join(_correction(entry, *item) for item in erratum.correct.items())
        where = " and ".join(erratum.wrong_in)
        lines += wrap(f"erratum in {where}: {right}. {erratum.why}", _WIDTH)
    if entry.note:
        lines += wrap(f"note: {entry.note}", _WIDTH)
    return lines


def _correction(entry: Entry, name: str, correct: Value) -> str:
    expected = entry.expected[name]
    wrong = "-" if expected.printed is None else show(expected.printed, expected.unit)
    return f"{name} is {show(correct, expected.unit)}, not {wrong}"


def _sources(entries: Sequence[Entry]) -> str:
    titles: Mapping[str, None] = {s.title: None for e in entries for s in e.editions.values()}
    return "\n".join(f"source: {title}" for title in titles)


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

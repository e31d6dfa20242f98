"""Values of the book in words: with their units, and how ours stand to the printed ones."""

from rooflight.book.entry import Entry, Value
from rooflight.book.solve import BookAnswer
from rooflight.units import format_count, format_seconds, format_si

_SCALED = ("B", "B/s", "FLOP", "FLOP/s", "OP", "OP/s", "MAC/s", "Hz", "FLOP/USD", "W")
_PLAIN = ("", "1", "bool", "slice", "mesh", "chip", "tensor", "contraction", "axes", "dtype")


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

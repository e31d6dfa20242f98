"""Quantities as text: parse what a person types, print what a person reads.

SI throughout: seconds, bytes, FLOP/s. GB = 1e9; a binary prefix (Gi) only when written so, but for
the lengths of sequences: 8k tokens are 8,192.
"""

import math
import re
from collections.abc import Collection, Mapping
from fractions import Fraction

from rooflight.errors import ParseError, UsageError

_PREFIX = {
    "": 1,
    "k": 10**3,
    "K": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "P": 10**15,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
}
_LENGTHS = {"": 1, **{k: 2**10 for k in ("k", "K", "Ki")}, **{m: 2**20 for m in ("M", "Mi")}}
_NUMBER = re.compile(
    r"\s*([0-9]{1,30}(?:\.[0-9]{1,30})?(?:e[+-]?[0-9]{1,2})?)\s*([kKMGTP]i?)?B?\s*"
)
_SECONDS = re.compile(
    r"\s*([0-9]{1,15}(?:\.[0-9]{1,15})?(?:e[+-]?[0-9]{1,2})?)\s*(s|ms|us|min|h)?\s*"
)
_SECOND_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "min": 60.0, "h": 3600.0}
_RATE_STEPS = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_TIME_STEPS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))


def parse_count(text: str, *, what: str = "number") -> int:
    """Reads a whole number of things: `8192`, `4M`, `32Ki`, `1.5e9`, `300MB`.

    >>> parse_count("8Ki"), parse_count("4M"), parse_count("1.5e3")
    (8192, 4000000, 1500)
    """
    return _whole(text, what, _PREFIX, "write 8192, 4M, 32Ki or 1.5e9")


def parse_length(text: str, *, what: str = "length") -> int:
    """Reads the positions of a sequence, whose k and M are powers of two, as contexts are named.

    >>> parse_length("8k"), parse_length("8Ki"), parse_length("1M"), parse_length("8000")
    (8192, 8192, 1048576, 8000)
    """
    return _whole(text, what, _LENGTHS, "write 8192, 8k or 128k")


def _whole(text: str, what: str, prefixes: Mapping[str, int], hint: str) -> int:
    match = _NUMBER.fullmatch(text)
    prefix = prefixes.get(match[2] or "") if match else None
    if match is None or prefix is None:
        raise ParseError(f"{what} {text!r} is not a count", hint=hint)
    value = Fraction(match[1]) * prefix
    if value.denominator != 1:
        raise ParseError(f"{what} {text!r} is not whole", hint=f"write {round(value)}")
    return int(value)


def parse_sizes(text: str, *, what: str = "dim") -> dict[str, int]:
    """Reads named sizes: `I=8192,J=32Ki`.

    >>> parse_sizes("I=8192, J=32Ki")
    {'I': 8192, 'J': 32768}
    """
    sizes: dict[str, int] = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        name = name.strip()
        if not equals or not name.isidentifier() or name in sizes:
            raise ParseError(
                f"{part!r} is not NAME=SIZE", hint=f"give each {what} once: I=8192,J=4Ki"
            )
        sizes[name] = parse_count(value, what=f"{what} {name}")
        if sizes[name] < 1:
            raise ParseError(f"{what} {name} has size {sizes[name]}", hint="sizes start at 1")
    return sizes


def whole(flag: str, value: int | str, *, most: int, least: int = 1) -> int:
    """A count within bounds."""
    count = parse_count(str(value), what=flag)
    if not least <= count <= most:
        raise UsageError(
            f"{flag} {value} is not from {least} to {most:,}", hint=f"write {flag} {max(1, least)}"
        )
    return count


def positive(flag: str, value: float | str, *, example: str = "20") -> float:
    """A number above 0."""
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not 1e-6 <= number <= 1e6:
        raise ParseError(
            f"{flag} {value!r} is not a number above 0", hint=f"write {flag} {example}"
        )
    return number


def parse_seconds(text: str, *, what: str = "time") -> float:
    """Reads a duration above 0: `1s`, `30ms`, `0.5`, `20us`, `3min`.

    >>> parse_seconds("30ms"), parse_seconds("1.5"), parse_seconds("3min")
    (0.03, 1.5, 180.0)
    """
    match = _SECONDS.fullmatch(text)
    value = float(match[1]) * _SECOND_UNITS[match[2] or "s"] if match else 0.0
    if not 0 < value < 1e12:
        raise ParseError(f"{what} {text!r} is not a time", hint=f"write {what} 1s or 30ms")
    return value


def parse_part(text: str, *, what: str = "part") -> float:
    """A part of a whole, from 0 to below 1.

    >>> parse_part("8%"), parse_part("0.08")
    (0.08, 0.08)
    """
    number = text.strip().removesuffix("%")
    try:
        part = float(number) / (100 if "%" in text else 1)
    except ValueError:
        part = math.nan
    if not 0 <= part < 1:
        raise ParseError(f"{what} must be from 0 to below 1, got {text!r}", hint="write 8% or 0.08")
    return part


def _significant(value: float, digits: int = 3) -> str:
    """Three significant digits without an exponent where that stays short.

    >>> _significant(23.3017), _significant(0.5), _significant(1234.5)
    ('23.3', '0.5', '1234')
    """
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    text = f"{value:.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def format_si(value: float, unit: str) -> str:
    """A value with an SI prefix.

    >>> format_si(4.59e14, "FLOP/s"), format_si(33554432, "B"), format_si(240, "FLOP/B")
    ('459 TFLOP/s', '33.6 MB', '240 FLOP/B')
    """
    for step, prefix in _RATE_STEPS:
        if abs(value) >= step * 0.9995:
            return f"{_significant(value / step)} {prefix}{unit}"
    return f"{_significant(value)} {unit}"


def format_seconds(seconds: float) -> str:
    """A duration in the unit that reads best.

    >>> format_seconds(2.33e-5), format_seconds(0.1667), format_seconds(0)
    ('23.3 us', '167 ms', '0 s')
    """
    for step, unit in _TIME_STEPS:
        if abs(seconds) >= step * 0.9995:
            return f"{_significant(seconds / step)} {unit}"
    return "0 s" if seconds == 0 else f"{_significant(seconds * 1e9)} ns"


def median(values: Collection[float]) -> float:
    """The middle one, or the mean of the middle two; `statistics` takes long to import.

    >>> median([3, 1, 2]), median([1, 2, 3, 10])
    (2.0, 2.5)
    """
    ordered, last = sorted(values), len(values) - 1
    return (ordered[last // 2] + ordered[(last + 1) // 2]) / 2


def many(count: int, thing: str) -> str:
    """`1 chip`, `1,024 chips`."""
    return f"{count:,} {thing}" if count == 1 else f"{count:,} {thing}s"


def format_count(value: int) -> str:
    """A whole number with thousands separated.

    >>> format_count(8960)
    '8,960'
    """
    return f"{value:,}"

"""Values of flags: whole numbers and lists, with errors that name the flag."""

import re
from collections.abc import Mapping

from rooflight.errors import ParseError

_PATTERN = re.compile(r"[\[\]()0-9,+*\s]{1,4000}")
_MOST = 10_000  # layers
_DEEPEST = 8


def count(values: Mapping[str, object], key: str) -> int:
    """A flag that must be a whole number of 1 or more."""
    value = values[key]
    if isinstance(value, int) and value is not True and value >= 1:
        return value
    got = "nothing" if value is True or value == "" else repr(value)
    raise ParseError(
        f"--{key} must be a whole number of 1 or more, got {got}",
        hint=f"add it as a word, such as {key}=8, or set the variable that it reads",
    )


def optional(values: Mapping[str, object], key: str) -> int | None:
    return None if values[key] in ("", None) else count(values, key)


def layer_pattern(value: object, num_layers: int) -> tuple[bool, ...]:
    """Which layers `--moe-layer-freq` gives experts: every Nth, or a list.

    >>> layer_pattern("([0]*2+[1])*2", 6), layer_pattern(2, 4)
    ((False, False, True, False, False, True), (True, False, True, False))
    """
    if isinstance(value, int) and value is not True and value >= 1:
        return tuple(i % value == 0 for i in range(num_layers))
    text = re.sub(r"\s", "", str(value))
    found, rest = _sum(text, 0) if _PATTERN.fullmatch(text) else ([], "?")
    if rest or len(found) != num_layers:
        got = f"{len(found)} of them" if not rest else repr(str(value)[:80])
        raise ParseError(
            f"--moe-layer-freq must be a number or a list of {num_layers} 0 and 1, got {got}",
            hint=f"write ([0]*1+[1]*{num_layers - 1})",
        )
    return tuple(n != 0 for n in found)


_Rest = tuple[list[int], str]


def _sum(text: str, depth: int) -> _Rest:
    found, rest = _times(text, depth)
    while rest[:1] == "+":
        more, rest = _times(rest[1:], depth)
        found = _bounded(found, 1, more)
    return found, rest


def _times(text: str, depth: int) -> _Rest:
    found, rest = _list(text, depth)
    while match := re.match(r"\*(\d{1,5})", rest):
        found, rest = _bounded(found, int(match[1]), []), rest[match.end() :]
    return found, rest


def _bounded(found: list[int], times: int, more: list[int]) -> list[int]:
    if len(found) * times + len(more) > _MOST:
        raise ParseError(f"--moe-layer-freq is a list of more than {_MOST}", hint="shorten it")
    return found * times + more


def _list(text: str, depth: int) -> _Rest:
    match = re.match(r"\[([01](?:,[01])*)\]", text)
    if match:
        return [int(n) for n in match[1].split(",")], text[match.end() :]
    if text[:1] == "(" and depth < _DEEPEST:
        found, rest = _sum(text[1:], depth + 1)
        if rest[:1] == ")":
            return found, rest[1:]
    return [], "?"

"""The terminal: how wide it is, and whether it shows colour.

In: a page of text. Out: the same within the width, with what binds and what does not fit marked.
A pipe gets the page as it is, unless COLUMNS gives a width; NO_COLOR keeps a terminal plain.
"""

import os
import re
import sys
import textwrap

BINDS, TOO_MUCH = "33", "31"  # yellow, red
_LEAST = 20  # columns; below it words would stand one under the other
_CODE = re.compile(r"\x1b\[\d*m")
_BINDS = re.compile(r"\bbound\sby (?! )[^,;()\n]+?(?=[,;()\n]|\.?$|  )", re.MULTILINE)
_TOO_MUCH = re.compile(r"\b(?:DOES NOT FIT|does not fit)\b")


def width() -> int | None:
    """Columns that a line may take; None is any number."""
    given = os.environ.get("COLUMNS", "")
    if given.isdecimal() and int(given):
        return max(int(given), _LEAST)
    try:
        found = os.get_terminal_size(sys.stdout.fileno()).columns if sys.stdout.isatty() else 0
    except (OSError, ValueError):  # closed, or made in memory
        return None
    return max(found, _LEAST) if found else None


def within(most: int) -> int:
    """The width of a picture that may be narrower."""
    return min(most, width() or most)


def painted(text: str, code: str) -> str:
    """The text in a colour, where there are colours."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return text if plain or not sys.stdout.isatty() else f"\x1b[{code}m{text}\x1b[0m"


def fitted(page: str) -> str:
    """Sentences wrapped at the width; tables have seen to it themselves."""
    most = width()
    if most is not None:
        page = "\n".join(part for line in page.split("\n") for part in wrapped(line, most))
    page = _BINDS.sub(lambda found: painted(found[0], BINDS), page)
    return _TOO_MUCH.sub(lambda found: painted(found[0], TOO_MUCH), page)


def wrapped(line: str, most: int) -> list[str]:
    """A line as several, cut between words, all as far in as the first."""
    if len(_CODE.sub("", line)) <= most:
        return [line]
    indent = line[: len(line) - len(line.lstrip())][: most // 2]
    return textwrap.wrap(line, most, subsequent_indent=indent, break_on_hyphens=False) or [""]

"""What a verb writes: text or one JSON document on stdout, the talk on stderr, files by name.

A verb renders everything first and prints last, so a failure leaves stdout empty.
"""

import json
import sys
from collections.abc import Iterable, Mapping
from typing import Any  # what JSON can say

from rooflight.errors import UsageError
from rooflight.ui.text.terminal import fitted

SCHEMA = 2


def print_json(verb: str, fields: Mapping[str, object]) -> None:
    """Prints one versioned document; a number that JSON cannot say is a bug."""
    print(json.dumps({"schema": SCHEMA, "verb": verb, **fields}, indent=2, allow_nan=False))


def picked(record: object, names: str) -> dict[str, Any]:
    """The fields of a record that a document has by the same names and as they are.

    >>> picked(3j, "real imag")
    {'real': 0.0, 'imag': 3.0}
    """
    return {name: getattr(record, name) for name in names.split()}


def show(page: str) -> None:
    """Prints an answer: on a terminal within its width, and what binds or does not fit marked."""
    print(fitted(page))


def suggest(*commands: str) -> None:
    """Says on stderr what to run next."""
    sys.stdout.flush()
    for command in commands:
        print(f"next: {command}", file=sys.stderr)


def write_file(path: str, text: str, *, flag: str) -> None:
    """Writes a file the user named with a flag."""
    write_pieces(path, [text], flag=flag)


def write_pieces(path: str, pieces: Iterable[str], *, flag: str) -> None:
    """The same for a text that is too long to be held whole."""
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.writelines(pieces)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"cannot write {path!r}: {error}", hint=f"give {flag} a file in a folder that exists"
        ) from None

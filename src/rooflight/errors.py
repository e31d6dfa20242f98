"""What can go wrong, and what the user can do about it.

    RooflightError            exit 1   anything we raise on purpose
    +-- UsageError            exit 2   the request itself is wrong
    |   +-- ParseError                 text that is not in our grammar
    |   +-- UnknownNameError           a name that no catalog holds (did-you-mean)
    |   +-- ShardingError              a sharding or contraction that cannot be
    |   +-- PlacementError             a mesh that does not fit its slice
    +-- MissingExtraError     exit 2   an optional dependency is not installed
    +-- ModelError            exit 1   a broken invariant of our own model (utilisation above 1)

Every message says what is wrong with the actual values; `hint` ends it with something that works.
"""

from collections.abc import Iterable


class RooflightError(Exception):
    """The root of the tree: a message, an optional hint, and the exit code of the command."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint

    def render(self) -> str:
        """The text a person sees: `error: ...`, a blank line, `hint: ...`."""
        text = f"error: {self}"
        return f"{text}\n\nhint: {self.hint}" if self.hint else text


class UsageError(RooflightError):
    """The request is wrong; nothing was computed."""

    exit_code = 2


class ParseError(UsageError):
    """Text that is not in our grammar."""


class ShardingError(UsageError):
    """A sharding or contraction that cannot be."""


class PlacementError(UsageError):
    """A mesh that does not fit the slice it is placed on."""


class MissingExtraError(UsageError):
    """An optional dependency is not installed."""


class ModelError(RooflightError):
    """Our own model contradicts itself, such as a utilisation above 1."""


class UnknownNameError(UsageError):
    """A name that no catalog holds; the hint names the closest ones."""

    def __init__(self, kind: str, name: str, known: Iterable[str], *, hint: str = "") -> None:
        known = sorted(known)
        super().__init__(f"unknown {kind} {name!r}", hint=hint or _did_you_mean(name, known))


def _did_you_mean(name: str, known: list[str]) -> str:
    from difflib import get_close_matches  # only on the way to an error: keeps start-up fast

    close = get_close_matches(name.lower(), known, n=3, cutoff=0.5)
    if close:
        return "did you mean " + " or ".join(f"`{c}`" for c in close) + "?"
    return "choose one of " + ", ".join(known)

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
    close = near_names(name, known)
    if close:
        return "did you mean " + " or ".join(f"`{c}`" for c in close) + "?"
    return "choose one of " + ", ".join(known)


def near_names(name: str, known: Iterable[str]) -> list[str]:
    """Up to three names that may have been meant: the nearest by slips, else those it begins.

    A slip is a letter too many, too few, wrong or swapped with the next; one is let pass in a word
    of three letters, and another for every four of a longer one.

    >>> near_names("h10", ["a100", "h100", "v5e"]), near_names("h100", ["a10", "v100x", "x"])
    (['h100'], [])
    >>> near_names("llama3", ["llama3-8b", "llama3-70b", "mpt-7b"])
    ['llama3-8b', 'llama3-70b']
    """
    word = name.lower()
    slips: dict[str, int] = {}
    begun: list[str] = []
    for one in known:
        most = _let_pass(max(len(word), len(one)))
        if abs(len(word) - len(one)) <= most and (count := _slips(word, one.lower())) <= most:
            slips[one] = count
        elif len(word) > 2 and one.lower().startswith(word):
            begun.append(one)
    nearest = min(slips.values(), default=0)
    return [one for one, count in slips.items() if count == nearest][:3] or begun[:3]


def _let_pass(letters: int) -> int:
    return max(1, letters // 4) if letters > 2 else 0


def _slips(a: str, b: str) -> int:
    """The fewest slips from one word to the other, row by row of the usual table."""
    before, last = [0] * (len(b) + 1), list(range(len(b) + 1))
    for i, x in enumerate(a, start=1):
        row = [i]
        for j, y in enumerate(b, start=1):
            row.append(min(last[j] + 1, row[-1] + 1, last[j - 1] + (x != y)))
            if i > 1 and j > 1 and x == b[j - 2] and y == a[i - 2]:
                row[-1] = min(row[-1], before[j - 2] + 1)
        before, last = last, row
    return last[-1]


def install(extras: str) -> str:
    """How to get what a verb needs beyond the planner; from a clone, until there is a release.

    >>> install("tpu")
    "pip install '.[tpu]' in a clone of rooflight"
    """
    return f"pip install '.[{extras}]' in a clone of rooflight"

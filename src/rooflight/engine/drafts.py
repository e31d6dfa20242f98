"""`Drafts`: guesses at the next tokens of a text from what it has said before.

The last few tokens of a text are looked up where they last stood; what followed them there is the
guess. The model checks guesses of all rows in one call, and takes a guess only where it is what it
would have drawn itself: drafts change how many steps a text takes, and never the text.
"""

from collections.abc import Sequence

_LENGTHS = (3, 2)  # tokens that are looked up, the longest match first


class Drafts:
    """An index of one text, kept up as it grows."""

    __slots__ = ("_after", "_tokens")

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._after: dict[tuple[int, ...], int] = {}  # some tokens -> where the next one stands

    def extend(self, tokens: Sequence[int]) -> None:
        """More of the text. The last tokens are not indexed until something follows them."""
        for token in tokens:
            at = len(self._tokens)
            for length in _LENGTHS:
                if at >= length:
                    self._after[tuple(self._tokens[at - length : at])] = at
            self._tokens.append(token)

    def guess(self, count: int) -> list[int]:
        """At most `count` tokens that may come next.

        >>> drafts = Drafts()
        >>> drafts.extend([7, 1, 2, 3, 4, 9, 1, 2])
        >>> drafts.guess(2)
        [3, 4]
        """
        end = len(self._tokens)
        for length in _LENGTHS:
            at = self._after.get(tuple(self._tokens[end - length :])) if end >= length else None
            if at is not None:
                return self._tokens[at : at + count]
        return []

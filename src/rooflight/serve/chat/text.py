"""`TextStream`: tokens as they come, text as soon as it is certain.

Certain means: no byte of a character is missing, and no stop string can begin in it. Whatever way
tokens arrive, one by one or all at once, the pieces add up to the same text.
"""

import codecs
from collections.abc import Iterable, Sequence

from rooflight.serve.chat.tokens import Tokenizer
from rooflight.serve.chat.tools import possible_start

_REPLACEMENT = "\ufffd"
_MOST_HELD = 8  # tokens that may be parts of one character; more are no character


class Decoder:
    """Tokens to text, a piece at a time; never half a character."""

    __slots__ = ("_ids", "_read", "_start", "_tokenizer", "_utf8")

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        # Without bytes: tokens since a place where a text can be cut, and how many were read.
        self._ids: list[int] = []
        self._start = 0
        self._read = 0

    def push(self, tokens: Iterable[int]) -> str:
        shown = [t for t in tokens if t not in self._tokenizer.special]
        pieces = self._tokenizer.bytes_of
        if pieces is not None:
            joined = b"".join(pieces[t] for t in shown if t < len(pieces))
            return self._utf8.decode(joined)
        return "".join(self._step(token) for token in shown)

    def flush(self) -> str:
        """What is left of a character that was cut off."""
        if self._tokenizer.bytes_of is not None:
            return self._utf8.decode(b"", final=True)
        return self._window()[0]

    def _step(self, token: int) -> str:
        self._ids.append(token)
        new, is_whole = self._window()
        if not is_whole:
            return ""
        # The tokens read so far stay as context: a word alone may be written without its space.
        self._start, self._read = self._read, len(self._ids)
        return new

    def _window(self) -> tuple[str, bool]:
        """The text since the last place that was read, and whether it ends with a character."""
        decode, window = self._tokenizer.decode, self._ids[self._start :]
        before = decode(window[: self._read - self._start])
        new = decode(window)[len(before) :]
        held = len(self._ids) - self._read
        return new, not new.endswith(_REPLACEMENT) or held > _MOST_HELD


class TextStream:
    """The text of one choice, cut at the first stop string."""

    __slots__ = ("_decoder", "_held", "_stops", "is_stopped", "length")

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str]) -> None:
        self._decoder = Decoder(tokenizer)
        self._stops = stops
        self._held = ""
        self.length = 0  # characters given out
        self.is_stopped = False  # a stop string was found; nothing follows

    def push(self, tokens: Sequence[int], *, is_last: bool) -> str:
        """The text that is certain now; with the last tokens, all of it."""
        if self.is_stopped:
            return ""
        self._held += self._decoder.push(tokens) + (self._decoder.flush() if is_last else "")
        cut = self._cut() if self._stops else None
        if cut is not None:
            self.is_stopped = True
        elif is_last or not self._stops:
            cut = len(self._held)
        else:
            cut = len(self._held) - possible_start(self._held, self._stops)
        text, self._held = self._held[:cut], self._held[cut:]
        self.length += len(text)
        return text

    def _cut(self) -> int | None:
        """Where the stop string begins that is complete first: so it is one token at a time."""
        found = [(at + len(s), at) for s in self._stops if (at := self._held.find(s)) >= 0]
        return min(found)[1] if found else None

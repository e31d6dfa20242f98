"""A shell script as tokens: words as they are written, and the operators between them.

Quotes, `$` forms and the lists of array assignments stay inside their word. Comments, redirections
and here-documents are left out.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from rooflight.errors import ParseError

_BLANKS = " \t"
_ENDS = frozenset(" \t\n;|&()<>")
_ARRAY = re.compile(r"[A-Za-z_]\w*\+?=")
_REDIRECT = re.compile(r"(?:&>>?|>>|>\||[<>]&|<<<|<>|[<>])")
_HERE = re.compile(r"<<(-?)[ \t]*(['\"]?)([A-Za-z_]\w*)\2")
_DEEPEST = 40  # quotes and substitutions inside one another
_PAIRS = {"$((": "))", "$(": ")", "${": "}"}


@dataclass(frozen=True, slots=True)
class Token:
    """A word as written, or one of `&& || ; ;; | & ( )` and the end of a line."""

    text: str
    line: int
    is_word: bool


def tokens(text: str) -> list[Token]:
    """Splits a script.

    >>> [token.text for token in tokens('A=(1 2)  # two\\nrun "$A b" | tee log')]
    ['A=(1 2)', '\\n', 'run', '"$A b"', '|', 'tee', 'log', '\\n', '\\n']
    """
    return list(_Tokens(text).all())


class _Tokens:
    def __init__(self, text: str) -> None:
        self.text = text.replace("\r\n", "\n") + "\n\n"  # a word never ends the text
        self.at = 0
        self.line = 1
        self.here: list[str] = []  # the words that end here-documents of this line

    def all(self) -> Iterator[Token]:
        while self._skip_blanks():
            if self.text.startswith("((", self.at):
                yield self._word(self._until("((", "))"))
            elif self._redirects():
                continue
            elif self.text[self.at] in _ENDS:
                yield self._operator()
            else:
                yield from self._plain()

    def _skip_blanks(self) -> bool:
        """Moves to what comes next, past comments; false at the end."""
        while self.at < len(self.text):
            if self.text.startswith("\\\n", self.at):
                self.line += 1
                self.at += 2
            elif self.text[self.at] in _BLANKS:
                self.at += 1
            elif self.text[self.at] == "#":
                self.at = self.text.index("\n", self.at)
            else:
                return True
        return False

    def _operator(self) -> Token:
        two = self.text[self.at : self.at + 2]
        found = two if two in ("&&", "||", ";;") else two[0]
        token = Token(found, self.line, is_word=False)
        self.at += len(found)
        if found == "\n":
            self.line += 1
            self._skip_here()
        return token

    def _skip_here(self) -> None:
        for word in self.here:
            while self.at < len(self.text):
                end = self.text.index("\n", self.at)
                line, self.at = self.text[self.at : end], end + 1
                self.line += 1
                if line.strip() == word:
                    break
        self.here = []

    def _redirects(self) -> bool:
        """Passes over a redirection and what it names."""
        here = _HERE.match(self.text, self.at)
        if here:
            self.here.append(here[3])
            self.at = here.end()
            return True
        match = _REDIRECT.match(self.text, self.at)
        if match is None:
            return False
        self.at = match.end()
        if self._skip_blanks():
            self.at = self._until("(", ")") if self.text[self.at] == "(" else self._end()
        return True

    def _plain(self) -> Iterator[Token]:
        end = self._end()
        if self.text[self.at : end].isdigit() and self.text[end] in "<>":
            self.at = end  # a file's number
        else:
            yield self._word(end)

    def _word(self, end: int) -> Token:
        token = Token(self.text[self.at : end], self.line, is_word=True)
        self.line += token.text.count("\n")
        self.at = end
        return token

    def _end(self) -> int:
        """Where the word ends that begins here."""
        at = self.at
        while self.text[at] not in _ENDS:
            at = span(self.text, at)
            if self.text[at] == "(" and _ARRAY.fullmatch(self.text, self.at, at):
                at = closing(self.text, at + 1, ")")
        return at

    def _until(self, opening: str, end: str) -> int:
        return closing(self.text, self.at + len(opening), end)


def span(text: str, at: int, depth: int = 0) -> int:
    """The end of what begins at a place: an escape, quotes, a `$` form, or one character."""
    if depth > _DEEPEST:
        raise ParseError(
            f"quotes or substitutions are more than {_DEEPEST} deep", hint="write them out"
        )
    mark = text[at]
    if mark == "\\":
        return min(at + 2, len(text))
    if mark == "'":
        return _after(text, "'", at + 1)
    if mark in ('"', "`"):
        return closing(text, at + 1, mark, depth + 1)
    for opening, end in _PAIRS.items():
        if text.startswith(opening, at):
            return closing(text, at + len(opening), end, depth + 1)
    return at + 1


def closing(text: str, at: int, end: str, depth: int = 0) -> int:
    """Where what was opened before a place ends, past `end`."""
    start = at
    while at < len(text):
        if text.startswith(end, at):
            return at + len(end)
        if end == '"' and text[at] == "'":
            at += 1
        elif end == "`":
            at += 2 if text[at] == "\\" else 1
        elif end == ")" and text[at] == "#" and text[at - 1] in " \t\n(":
            at = _after(text, "\n", at)
        elif end in (")", "))") and text[at] == "(":
            at = closing(text, at + 1, ")", _deeper(depth))
        else:
            at = span(text, at, depth)
    raise _unclosed(text, start, end)


def _deeper(depth: int) -> int:
    if depth >= _DEEPEST:
        raise ParseError(f"brackets are more than {_DEEPEST} deep", hint="write them out")
    return depth + 1


def _after(text: str, mark: str, at: int) -> int:
    found = text.find(mark, at)
    if found < 0:
        raise _unclosed(text, at, mark)
    return found + 1


def _unclosed(text: str, at: int, end: str) -> ParseError:
    line = text.count("\n", 0, at) + 1
    return ParseError(f"what opens in line {line} has no {end}", hint="close it")

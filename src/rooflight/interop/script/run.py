"""What a shell script would start, without starting it.

Assignments, arrays, `if` and `[ ... ] &&` are followed as far as they can be decided from the text.
Loops, `case`, functions and files that are sourced are not; if one of them sets or starts
something, `skipped` says so.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import pairwise, takewhile

from rooflight.errors import ParseError
from rooflight.interop.script.expand import UNKNOWN, Values, Variables, arithmetic, expand, text_of
from rooflight.interop.script.tokens import Token, tokens

_SET = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_BLOCKS = {name: "done" for name in ("for", "while", "until", "select")} | {"case": "esac"}
_OPENS = frozenset(("do", "then", "else", "elif", "{", "!", "if"))  # a command may follow
_DECLARES = frozenset(("export", "declare", "local", "readonly", "typeset"))
_SHELLS = frozenset(("bash", "sh", "-bash"))
_MOST_WORDS = 1_000_000  # that are set and started, all together
_DEEPEST = 20  # blocks and texts that are read as scripts, inside one another

Status = bool | None  # of a command; None if that cannot be known


class _Live(IntEnum):
    """Whether a command is reached."""

    NEVER = 0
    MAYBE = 1
    ALWAYS = 2


@dataclass(frozen=True, slots=True)
class Script:
    """The programs that are started, as words; what was not followed; the variables in the end."""

    programs: tuple[tuple[str, ...], ...]
    skipped: tuple[str, ...]
    variables: Variables


@dataclass(slots=True)
class _ScriptState:
    variables: Variables
    programs: list[tuple[str, ...]] = field(default_factory=list[tuple[str, ...]])
    skipped: dict[str, None] = field(default_factory=dict[str, None])
    num_words: int = 0
    has_ended: bool = False


def read_script(text: str, given: dict[str, str] | None = None) -> Script:
    """Follows a script; `given` is set from outside and stays as it is.

    >>> text = 'TP=8; A=(--tp $TP); if [ $TP -gt 4 ]; then A+=(--sp); fi; run "${A[@]}"'
    >>> read_script(text).programs
    (('run', '--tp', '8', '--sp'),)
    """
    values: dict[str, Values] = dict(given or {})
    state = _ScriptState(Variables(values))
    _ScriptReader(text, state, frozenset(given or ()), 0).read()
    return Script(tuple(state.programs), tuple(state.skipped), state.variables)


class _ScriptReader:
    """Walks the tokens of one text."""

    def __init__(self, text: str, state: _ScriptState, fixed: frozenset[str], depth: int) -> None:
        if depth > _DEEPEST:
            raise ParseError(f"scripts are more than {_DEEPEST} deep", hint="write them out")
        self.tokens = tokens(text)
        self.at = 0
        self.state, self.fixed, self.depth = state, fixed, depth
        self.status: Status = True

    def read(self) -> None:
        self._statements(frozenset(), _Live.ALWAYS, 0)

    def _peek(self) -> Token | None:
        return self.tokens[self.at] if self.at < len(self.tokens) else None

    def _statements(self, ends: frozenset[str], live: _Live, depth: int) -> str:
        """Follows commands up to a word that ends them, and says which; "" is the end."""
        if depth > _DEEPEST:
            raise ParseError(f"blocks are more than {_DEEPEST} deep", hint="write them out")
        while (token := self._peek()) is not None and not self.state.has_ended:
            if token.text in ends:
                self.at += 1
                return token.text
            if token.is_word or token.text == "(":
                self._chain(live, depth)
            else:
                self.at += 1
        return ""

    def _chain(self, live: _Live, depth: int) -> None:
        """Commands joined by `&&`, `||` and pipes."""
        reached = live
        while (token := self._peek()) is not None:
            if reached is _Live.NEVER:
                before = self.status
                self._command(token, reached, depth)
                self.status = before
            else:
                self._command(token, reached, depth)
            joint = self._peek()
            if joint is None or joint.text not in ("&&", "||", "|"):
                return
            self.at += 1
            while (after := self._peek()) is not None and after.text == "\n":
                self.at += 1
            if joint.text != "|":
                reached = min(live, _reached(self.status, on=joint.text == "&&"))

    def _command(self, token: Token, live: _Live, depth: int) -> None:
        if token.text == "if":
            self._if(token, live, depth)
        elif token.text in _BLOCKS:
            self._skip(token, live, lambda t: t in _BLOCKS, _BLOCKS.values(), token.text)
        elif token.text == "function" or self._is_function():
            self._skip(token, live, lambda t: t == "{", ("}",), "function")
        elif token.text in ("{", "("):
            self.at += 1
            end = "}" if token.text == "{" else ")"
            self._statements(frozenset((end,)), live, depth + 1)
        else:
            self._simple(token, live)

    def _is_function(self) -> bool:
        following = [token.text for token in self.tokens[self.at + 1 : self.at + 3]]
        return self.tokens[self.at].is_word and following == ["(", ")"]

    def _if(self, token: Token, live: _Live, depth: int) -> None:
        """Follows the branch that is taken; each of them where that cannot be known."""
        left, end = _Live.ALWAYS, "elif"  # what no earlier branch has taken
        while end in ("elif", "else"):
            self.status = True
            if end == "elif":
                self.at += token.text == "if" and self.tokens[self.at] is token
                self._statements(frozenset(("then",)), live, depth + 1)
            reached = min(live, left, _reached(self.status, on=True))
            left = min(left, _reached(self.status, on=False))
            end = self._statements(frozenset(("elif", "else", "fi")), reached, depth + 1)
        if end != "fi" and not self.state.has_ended:
            raise ParseError(f"the if of line {token.line} has no fi", hint="close it")
        self.status = True

    def _skip(
        self,
        token: Token,
        live: _Live,
        opens: Callable[[str], bool],
        closes: Iterable[str],
        what: str,
    ) -> None:
        """Passes over a block; what it may set or start is noted."""
        depth, is_first, matters = 0, True, False
        for at in range(self.at, len(self.tokens)):
            here = self.tokens[at]
            matters |= here.is_word and _matters(here.text)
            depth += is_first and opens(here.text)
            depth -= is_first and here.text in closes
            is_first = not here.is_word or here.text in _OPENS
            if not depth and here.text in closes:
                self.at = at + 1
                if matters and live is not _Live.NEVER:
                    self._note(token, f"a {what} is not followed")
                return
        raise ParseError(f"the {what} of line {token.line} has no end", hint="close it")

    def _note(self, token: Token, why: str) -> None:
        self.state.skipped[f"line {token.line}: {why}"] = None

    def _simple(self, token: Token, live: _Live) -> None:
        words = self._words()
        negates = words[:1] == ["!"]
        self._simple_words(words[negates:], token, live)
        if negates and self.status is not None:
            self.status = not self.status

    def _words(self) -> list[str]:
        """The words of a command; those of `[[ ]]` with the operators between them."""
        found: list[str] = []
        is_test = False
        while (token := self._peek()) is not None:
            if not token.is_word and not is_test:
                break
            self.at += 1
            found.append(token.text)
            is_test = (is_test or (token.text == "[[" and len(found) == 1)) and token.text != "]]"
        if not found:
            self.at += 1
        return found

    def _simple_words(self, words: list[str], token: Token, live: _Live) -> None:
        self.status = True
        if live is _Live.NEVER or not words:
            return
        if live is _Live.MAYBE:
            if any(map(_matters, words)):
                self._note(token, "a condition is not known, so what it guards is left out")
            return
        if words[0] in ("[", "[[", "test") or words[0].startswith("(("):
            self.status = test(words, self.state.variables)
        elif words[0] in ("true", "false", ":"):
            self.status = words[0] != "false"
        else:
            self._run(words, token)

    def _run(self, words: list[str], token: Token) -> None:
        """Assignments, or a command; assignments before a command are for its own eyes."""
        if words[0] in _DECLARES:
            words = [word for word in words[1:] if _SET.fullmatch(word)]
        sets = [match for match in takewhile(bool, map(_SET.fullmatch, words)) if match]
        rest = words[len(sets) :]
        for match in () if rest else sets:
            self._assign(match[1], match[2] == "+", match[3])
        name = rest[0] if rest else ""
        if name == "unset":
            for each in rest[1:]:
                self.state.variables.values.pop(each, None)
        elif name in ("source", "."):
            self._note(token, f"{' '.join(rest[:2])} is not read")
        elif name == "exit":
            self.state.has_ended = True
        elif name:
            self._start([w for raw in rest for w in expand(raw, self.state.variables)])

    def _assign(self, name: str, adds: bool, raw: str) -> None:
        if name in self.fixed:
            return
        variables = self.state.variables
        value: Values
        if raw.startswith("("):
            raws = [token.text for token in tokens(raw[1:-1]) if token.is_word]
            value = tuple(word for each in raws for word in expand(each, variables))
            before = variables.values.get(name, ())
            kept = before if isinstance(before, tuple) else (before,)
            value = (*kept, *value) if adds else value
            self._count(value)
        else:
            value = text_of(raw, variables)
            value = variables.one(name) + value if adds else value
            self._count((value,))
        variables.values[name] = value

    def _start(self, words: list[str]) -> None:
        if not words:
            return
        text = _inner(words)
        if text is not None:
            _ScriptReader(text, self.state, self.fixed, self.depth + 1).read()
            return
        self._count(words)
        self.state.programs.append(tuple(words))

    def _count(self, words: Sequence[str]) -> None:
        self.state.num_words += len(words) + sum(map(len, words)) // 16
        if self.state.num_words > _MOST_WORDS:
            raise ParseError(
                "the script sets and starts too much", hint="give the settings as key=value words"
            )


def _matters(word: str) -> bool:
    return _SET.fullmatch(word) is not None or word.strip("\"'").endswith(".py")


def _inner(words: Sequence[str]) -> str | None:
    """The script inside `eval` and `bash -c`, if it is known."""
    if words[0] == "eval":
        return " ".join(words[1:])
    shell = next((i for i, w in enumerate(words) if w.rsplit("/", 1)[-1] in _SHELLS), len(words))
    for flag, text in pairwise(words[shell + 1 :]):
        if not flag.startswith("-"):
            return None
        if flag.endswith("c"):
            return text
    return None


def _reached(status: Status, *, on: bool) -> _Live:
    if status is None:
        return _Live.MAYBE
    return _Live.ALWAYS if status is on else _Live.NEVER


def test(words: Sequence[str], variables: Variables) -> Status:
    """What `[ ... ]` or `(( ... ))` says; None if it asks for files or what is not known.

    >>> known = Variables({"TP": "8"})
    >>> test(["[[", "$TP", "==", "8", "]]"], known), test(["[", "-f", "a", "]"], known)
    (True, None)
    """
    if words[0].startswith("(("):
        value = arithmetic(words[0][2:-2], variables)
        return None if value == UNKNOWN else value != "0"
    atoms = [word for word in words if word not in ("[", "]", "[[", "]]", "test", "\n")]
    for joint, decides in (("||", True), ("&&", False)):
        if joint in atoms:
            at = atoms.index(joint)
            sides = (test(["[", *side], variables) for side in (atoms[:at], atoms[at + 1 :]))
            return _joined(list(sides), decides)
    return _atom(atoms, variables)


def _joined(sides: Sequence[Status], decides: bool) -> Status:
    if decides in sides:
        return decides
    return None if None in sides else not decides


def _atom(atoms: Sequence[str], variables: Variables) -> Status:
    if atoms and atoms[0] == "!":
        status = _atom(atoms[1:], variables)
        return None if status is None else not status
    values = [text_of(raw, variables) for raw in atoms]
    if any(UNKNOWN in value for value in values):
        return None
    if len(values) == 1:
        return bool(values[0])
    if len(values) == 2:
        return {"-n": bool(values[1]), "-z": not values[1]}.get(atoms[0])
    if len(values) != 3 or any(mark in atoms[2] for mark in "*?"):
        return None
    return _compared(values[0], atoms[1], values[2])


def _compared(left: str, sign: str, right: str) -> Status:
    if sign in ("=", "==", "!="):
        return (left == right) == (sign != "!=")
    try:
        a, b = int(left), int(right)
    except ValueError:
        return None
    holds = {"-eq": a == b, "-ne": a != b, "-gt": a > b, "-ge": a >= b, "-lt": a < b, "-le": a <= b}
    return holds.get(sign)

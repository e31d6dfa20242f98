"""Words of a shell script with the values of their variables. Commands are not run.

What a command would print is `UNKNOWN`. A variable that nobody set is empty, as for a script that
is started with no environment and no arguments.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from rooflight.errors import ParseError
from rooflight.interop.script.tokens import span

UNKNOWN = "\0"
Values = str | tuple[str, ...]

MOST = 100_000  # characters that one word may become
_NAME = re.compile(r"[A-Za-z_]\w*")
_PLAIN = re.compile(r"\$([A-Za-z_]\w*|[0-9@*#?$!-])")
_BRACED = re.compile(r"([A-Za-z_]\w*|\d+|[@*])(?:\[(@|\*|\d{1,4})\])?(:?[-=+?])?(.*)", re.DOTALL)
_ALL = re.compile(r"\"\$(?:@|\{\w+\[@\]\})\"")
_NUMBERS = re.compile(r"\s*(\d{1,18}|[A-Za-z_]\w*|[<>=!]=|[-+*/%()<>])")
_LONGEST = 100  # characters of an arithmetic expression


@dataclass(slots=True)
class Variables:
    """What a script has set so far; `unset` are names that were read before."""

    values: dict[str, Values] = field(default_factory=dict[str, Values])
    unset: dict[str, None] = field(default_factory=dict[str, None])

    def all(self, name: str) -> tuple[str, ...] | None:
        """Every element of an array, the value of a plain variable; None if it is not set."""
        found = self.values.get(name)
        if found is None:
            if _NAME.fullmatch(name):
                self.unset[name] = None
            return None
        return found if isinstance(found, tuple) else (found,)

    def one(self, name: str) -> str:
        found = self.all(name)
        return found[0] if found else ""


def expand(raw: str, variables: Variables) -> list[str]:
    """The words that a word becomes.

    >>> known = Variables({"TP": "8", "ARGS": ("--bf16", "--lr 1")})
    >>> expand("--tp=${TP}", known), expand('"${ARGS[@]}"', known), expand("${ARGS[@]}", known)
    (['--tp=8'], ['--bf16', '--lr 1'], ['--bf16', '--lr', '1'])
    """
    fields = _ShellWords()
    at = 0
    while at < len(raw):
        end = span(raw, at)
        part = raw[at:end]
        if part[0] == "$" and end == at + 1:
            match = _PLAIN.match(raw, at)
            part, end = (match[0], match.end()) if match else (part, end)
        _part(part, variables, fields)
        at = end
    return fields.words


def text_of(raw: str, variables: Variables) -> str:
    """A word that stays one, as the value of an assignment does."""
    return " ".join(expand(raw, variables))


def _part(part: str, variables: Variables, fields: "_ShellWords") -> None:
    if part[0] == "\\":
        fields.add(part[1:].replace("\n", ""))
    elif part[0] == "'":
        fields.add(part[1:-1])
    elif part[0] == '"':
        if not _ALL.fullmatch(part):
            fields.add("")  # a word, though it may be empty
        _quoted(part[1:-1], variables, fields)
    elif part[0] in "$`" and len(part) > 1:
        fields.split(_values(part, variables))
    else:
        fields.add(part)


def _quoted(text: str, variables: Variables, fields: "_ShellWords") -> None:
    at = 0
    while at < len(text):
        end = at + 1
        if text[at] in "$`\\":
            match = _PLAIN.match(text, at)
            end = match.end() if match else span(text, at)
        part = text[at:end]
        if part[0] == "\\" and part[1:] in ("$", "`", '"', "\\", "\n"):
            fields.add(part[1:].replace("\n", ""))
        elif part[0] in "$`" and len(part) > 1:
            values = _values(part, variables)
            joined = part == "$*" or part.endswith("[*]}")
            fields.each((" ".join(values),) if joined else values)
        else:
            fields.add(part)
        at = end


class _ShellWords:
    """Words that grow by parts, within a bound."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self.is_open = False
        self.size = 0

    def add(self, text: str) -> None:
        self.size += len(text) + 1
        if self.size > MOST:
            raise ParseError(
                f"a word of the script becomes more than {MOST} characters",
                hint="give the settings as key=value words",
            )
        if self.is_open:
            self.words[-1] += text
        else:
            self.words.append(text)
        self.is_open = True

    def split(self, values: tuple[str, ...]) -> None:
        """Not quoted: each value is cut at its blanks."""
        for number, value in enumerate(values):
            if number or value[:1].isspace():
                self.is_open = False
            for place, word in enumerate(value.split()):
                self.is_open = self.is_open and not place
                self.add(word)
            if value[-1:].isspace():
                self.is_open = False

    def each(self, values: tuple[str, ...]) -> None:
        """Quoted: each value stays whole."""
        for number, value in enumerate(values):
            self.is_open = self.is_open and not number
            self.add(value)


def _values(form: str, variables: Variables) -> tuple[str, ...]:
    """What a `$` form or a command in backquotes stands for."""
    if form.startswith("$(("):
        return (arithmetic(form[3:-2], variables),)
    if form.startswith(("$(", "`")):
        return (UNKNOWN,)
    if not form.startswith("${"):
        return _plain(form[1:], variables)
    match = _BRACED.fullmatch(form[2:-1])
    if match is None or (match[4] and not match[3]):
        return (UNKNOWN,)
    name, place, operator, word = match.groups()
    found = _element(variables.all(name), place)
    return found or () if operator is None else _or_else(name, found, operator, word, variables)


def _plain(name: str, variables: Variables) -> tuple[str, ...]:
    if name in ("?", "#"):
        return ("0",)
    if name in ("$", "!", "-"):
        return (UNKNOWN,)
    return () if name in ("@", "*") or name.isdigit() else (variables.one(name),)


def _element(found: tuple[str, ...] | None, place: str | None) -> tuple[str, ...] | None:
    if found is None or place in ("@", "*"):
        return found
    number = int(place or 0)
    return found[number : number + 1]


def _or_else(
    name: str, found: tuple[str, ...] | None, operator: str, word: str, variables: Variables
) -> tuple[str, ...]:
    """`${A:-word}` and its kin; with a colon an empty value counts as none."""
    is_set = found is not None and (operator[0] != ":" or any(found))
    if operator[-1] == "+":
        return (text_of(word, variables),) if is_set else ()
    if is_set:
        return found or ()
    if operator[-1] == "?":
        return (UNKNOWN,)
    value = text_of(word, variables)
    if operator[-1] == "=":
        variables.values[name] = value
    variables.unset.pop(name, None)
    return (value,)


def arithmetic(text: str, variables: Variables) -> str:
    """An expression of whole numbers, with 1 and 0 for comparisons; else `UNKNOWN`.

    >>> arithmetic("$NODES * (GPUS + 4)", Variables({"NODES": "2", "GPUS": "4"}))
    '16'
    """
    plain = " ".join(expand(text, variables)) if "$" in text or "`" in text else text
    words = list(_number_words(plain))
    if not words or len(plain) > _LONGEST or UNKNOWN in words:
        return UNKNOWN
    try:
        value, rest = _compare(words, variables)
    except (ValueError, ZeroDivisionError, IndexError):
        return UNKNOWN
    return UNKNOWN if rest or abs(value) >= 1 << 63 else str(value)


def _number_words(text: str) -> Iterator[str]:
    at, text = 0, text.strip()
    while at < len(text):
        match = _NUMBERS.match(text, at)
        yield match[1] if match else UNKNOWN
        at = match.end() if match else len(text)


_Rest = tuple[int, list[str]]
_COMPARE = ("<", ">", "<=", ">=", "==", "!=")


def _compare(words: list[str], variables: Variables) -> _Rest:
    left, rest = _sum(words, variables)
    while rest and rest[0] in _COMPARE:
        sign = rest[0]
        right, rest = _sum(rest[1:], variables)
        less, same = left < right, left == right
        more = not less and not same
        holds = {"<": less, ">": more, "<=": not more, ">=": not less, "==": same, "!=": not same}
        left = int(holds[sign])
    return left, rest


def _sum(words: list[str], variables: Variables) -> _Rest:
    value, rest = _product(words, variables)
    while rest and rest[0] in "+-":
        sign = 1 if rest[0] == "+" else -1
        other, rest = _product(rest[1:], variables)
        value += sign * other
    return value, rest


def _product(words: list[str], variables: Variables) -> _Rest:
    value, rest = _factor(words, variables)
    while rest and rest[0] in "*/%":
        sign = rest[0]
        other, rest = _factor(rest[1:], variables)
        whole = abs(value) // abs(other) if sign != "*" else 0
        whole = -whole if (value < 0) != (other < 0) else whole  # towards zero, as in C
        value = {"*": value * other, "/": whole, "%": value - whole * other}[sign]
        if abs(value) >= 1 << 63:
            raise ValueError("too large")
    return value, rest


def _factor(words: list[str], variables: Variables) -> _Rest:
    word, rest = words[0], words[1:]
    if word in ("-", "+"):
        value, rest = _factor(rest, variables)
        return (-value if word == "-" else value), rest
    if word == "(":
        value, rest = _compare(rest, variables)
        if rest[0] != ")":
            raise ValueError("no closing bracket")
        return value, rest[1:]
    if _NAME.fullmatch(word):
        return int(variables.one(word) or 0), rest
    return int(word), rest

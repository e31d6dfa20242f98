"""Settings of other frameworks as flat keys: YAML or TOML files, then `key=value` words.

MaxText's files are flat YAML with a few lists. What is read here is that subset and no more: a
nested mapping, a block list, an anchor or a text over several lines is refused by its line.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import cast

from rooflight.errors import ParseError, UsageError
from rooflight.interop.framework import Framework

Flat = dict[str, object]

_KEY = re.compile(r"([A-Za-z_]\w*)\s*:(?:\s+(.*))?")
_WORD = re.compile(r"([A-Za-z_][\w.]*)=(.*)", re.DOTALL)
_COMMENT = re.compile(r"""((?:[^'"#]|"[^"]*"|'[^']*'|(?<!\s)\#)*?)(?:\s+\#.*|^\#.*)?""")
_WORDS: dict[str, object] = {"true": True, "false": False, "null": None, "~": None, "": None}
_HINT = "write one `key: value` a line"


def read_settings(words: Sequence[str], framework: Framework) -> Flat:
    """Files and `key=value` words in order; what comes later wins."""
    found: Flat = {}
    for word in words:
        pair = _WORD.fullmatch(word)
        if pair:
            found[pair[1]] = _value(pair[2], framework)
        else:
            found |= _file(word, framework)
    return found


def _value(text: str, framework: Framework) -> object:
    if framework.name == "maxtext":
        return _scalar(text.strip())
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, KeyError):
        return text


def _file(path: str, framework: Framework) -> Flat:
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise UsageError(
            f"cannot read {path!r}: {error}",
            hint=f"give a file of {framework.title}, or key=value words",
        ) from None
    return read_flat_yaml(text) if framework.name == "maxtext" else read_flat_toml(text)


def read_flat_toml(text: str) -> Flat:
    """Keys of tables joined with dots.

    >>> read_flat_toml("[training]\\nseq_len = 8_192")
    {'training.seq_len': 8192}
    """
    try:
        table = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ParseError(f"not a TOML file: {error}", hint="give the job's own file") from None
    return dict(_flatten(table, ""))


def _flatten(table: Mapping[str, object], prefix: str) -> Iterator[tuple[str, object]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flatten(cast(Mapping[str, object], value), f"{prefix}{key}.")
        else:
            yield prefix + key, value


def read_flat_yaml(text: str) -> Flat:
    """Reads `key: value` lines; lists in brackets stay text.

    >>> read_flat_yaml('steps: 10_000  # of Adam\\nname: "a # b"\\naxes: [x,\\n  y]')
    {'steps': 10000, 'name': 'a # b', 'axes': '[x, y]'}
    """
    found: Flat = {}
    for number, line in _logical_lines(text):
        match = _KEY.fullmatch(line)
        if match is None:
            raise ParseError(f"line {number} is not `key: value`: {line.strip()!r}", hint=_HINT)
        if match[1] in found:
            raise ParseError(f"line {number} sets {match[1]} again", hint="give each key once")
        value = (match[2] or "").strip()
        if value[:1] in "&*!|>%@`" and value:
            raise ParseError(f"line {number} has a value that is not read: {value!r}", hint=_HINT)
        found[match[1]] = _scalar(value)
    return found


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines without comments; those of a list in brackets joined to one."""
    whole, start = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        match = _COMMENT.fullmatch(line)
        bare = (match[1] if match else line).rstrip()
        if not bare.strip():
            continue
        whole, start = (f"{whole} {bare.strip()}", start) if whole else (bare, number)
        if _depth(whole) > 0:
            continue
        yield start, whole
        whole = ""
    if whole:
        raise ParseError(f"the list of line {start} has no end", hint="close its brackets")


def _depth(line: str) -> int:
    bare = re.sub(r"\"[^\"]*\"|'[^']*'", "", line)
    return sum(bare.count(c) for c in "[{") - sum(bare.count(c) for c in "]}")


def _scalar(text: str) -> object:
    if text[:1] in ("'", '"') and text:
        if len(text) < 2 or text[-1] != text[0]:
            raise ParseError(f"{text} has no end", hint="close its quotes")
        return text[1:-1]
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if re.fullmatch(r"[+-]?\d[\d_]{0,40}", text):
        return int(text.replace("_", ""))
    if re.fullmatch(r"[+-]?(\d[\d_]*\.?\d*|\.\d+)(e[+-]?\d{1,3})?", text, re.IGNORECASE):
        return float(text.replace("_", ""))
    return text


def whole(values: Mapping[str, object], key: str, *, least: int = 1) -> int:
    """A setting that must be a whole number; -1, where it means the rest, needs `least=-1`."""
    value = values[key]
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or value < least or value == 0:
        raise ParseError(f"{key} is {value!r}", hint=f"give {key} a whole number of 1 or more")
    return value


def text(values: Mapping[str, object], key: str) -> str:
    """A setting that must be text; an empty one may be null."""
    value = values[key]
    if value is not None and not isinstance(value, str):
        raise ParseError(f"{key} is {value!r}", hint=f"give {key} a name")
    return value or ""

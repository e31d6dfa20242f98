"""Settings of other frameworks as flat keys: YAML or TOML files, then `key=value` words.

MaxText's files are flat YAML with a few lists. What is read here is that subset and no more: a
nested mapping, a block list, an anchor or a text over several lines is refused by its line. Those
of Megatron-LM and what is built on it have mappings inside mappings; their keys join with dots.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

from rooflight.errors import ParseError
from rooflight.files import read_file
from rooflight.interop.framework import FrameworkSpec

Flat = dict[str, object]

_KEY = re.compile(r"([A-Za-z_]\w*)\s*:(?:\s+(.*))?")
_WORD = re.compile(r"([A-Za-z_][\w.]*)=(.*)", re.DOTALL)
_NESTED = re.compile(
    r"""( *)(?:"([^"]*)"|'([^']*)'|([^\s:'"\[{&*!|>%@`,-][^:]*|--?\w[^:]*)):(?:\s+(.*))?"""
)
_BLOCK = re.compile(r"( *)[^\s#][^#]{0,200}:\s+[|>][+-]?\d?")
_MOST_BYTES = 1 << 20  # of a file; the largest of theirs has 60 KB
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f\x7f-\x9f]")
_LONGEST = 100  # characters of a number
_WORDS: dict[str, object] = {"true": True, "false": False, "null": None, "~": None, "": None}
_HINT = "write one `key: value` a line"


def read_settings(words: Sequence[str], framework: FrameworkSpec) -> Flat:
    """Files and `key=value` words in order; what comes later wins."""
    found: Flat = {}
    for word in words:
        pair = _WORD.fullmatch(word)
        if pair:
            found[pair[1]] = _value(pair[2], framework)
        else:
            found |= _file(word, framework)
    return found


def _value(text: str, framework: FrameworkSpec) -> object:
    if framework.name == "maxtext":
        return scalar(text.strip())
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, KeyError):
        return text


def _file(path: str, framework: FrameworkSpec) -> Flat:
    text = read_text(path, framework)
    return read_flat_yaml(text) if framework.name == "maxtext" else read_flat_toml(text)


def read_text(path: str, framework: FrameworkSpec) -> str:
    """A file of a framework, if it is a regular one of at most 1 MiB and its characters show."""
    hint = f"give a file of {framework.title}, or key=value words"
    text = read_file(path, hint=hint, most_bytes=_MOST_BYTES)
    if _CONTROL.search(text):
        raise ParseError(f"cannot read {path}: it has control characters", hint=hint)
    return text


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
    for number, line in logical_lines(text):
        match = _KEY.fullmatch(line)
        if match is None:
            raise ParseError(f"line {number} is not `key: value`: {line.strip()!r}", hint=_HINT)
        if match[1] in found:
            raise ParseError(f"line {number} sets {match[1]} again", hint="give each key once")
        value = (match[2] or "").strip()
        if value[:1] in "&*!|>%@`" and value:
            raise ParseError(f"line {number} has a value that is not read: {value!r}", hint=_HINT)
        found[match[1]] = scalar(value)
    return found


def read_nested_yaml(text: str) -> Flat:
    """Mappings inside mappings, keys joined with dots; lists stay text.

    >>> read_nested_yaml("train:\\n  batch: 8 # why\\nlist:\\n- a\\n- b")
    {'train.batch': 8, 'list': '[a, b]'}
    """
    found: Flat = {}
    lists: dict[str, list[str]] = {}
    path: list[tuple[int, str]] = []  # indent, whole key
    for number, line in logical_lines(_without_blocks(text)):
        indent = len(line) - len(line.lstrip(" "))
        bare, match = line.strip(), _NESTED.fullmatch(line)
        is_item = bare.startswith("- ")
        while path and path[-1][0] >= indent + is_item:
            path.pop()
        parent = path[-1][1] if path else ""
        if is_item and parent:
            lists.setdefault(parent, []).append(bare[2:].strip())
        elif parent in lists:
            continue  # the rest of an item that is a mapping
        elif match is None and parent and found.get(parent) is None and not is_item:
            found[parent] = scalar(bare)
        elif match is None or is_item:
            raise ParseError(f"line {number} is not `key: value`: {bare[:80]!r}", hint=_HINT)
        else:
            key = ".".join(filter(None, (parent, (match[2] or match[3] or match[4]).strip())))
            _set_once(found, key, (match[5] or "").strip(), number)
            path.append((indent, key))
    found |= {key: f"[{', '.join(items)}]" for key, items in lists.items()}
    parents = {key.rpartition(".")[0] for key in found}
    return {key: value for key, value in found.items() if value is not None or key not in parents}


def _set_once(found: Flat, key: str, value: str, number: int) -> None:
    if found.get(key) is not None:
        raise ParseError(f"line {number} sets {key} again", hint="give each key once")
    if value[:1] in ("&", "*", "!"):
        raise ParseError(f"line {number} has a value that is not read: {value[:80]!r}", hint=_HINT)
    found[key] = scalar(value)


def _without_blocks(text: str) -> str:
    """Blank lines for texts over several lines, which set nothing here."""
    kept: list[str] = []
    block: int | None = None
    for line in text.splitlines():
        indent = len(line) - len(line.lstrip(" "))
        if block is not None and (indent > block or not line.strip()):
            kept.append("")
            continue
        match = _BLOCK.fullmatch(line.rstrip())
        block = len(match[1]) if match else None
        kept.append(line.rstrip().rstrip("|>+-0123456789") if match else line)
    return "\n".join(kept)


def logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines without comments; those of a list in brackets joined to one."""
    parts: list[str] = []
    start = depth = 0
    for number, line in enumerate(text.splitlines(), 1):
        bare = _without_comment(line).rstrip()
        if not bare.strip():
            continue
        start = start if parts else number
        parts.append(bare.strip() if parts else bare)
        depth += _depth(bare)
        if depth > 0:
            continue
        yield start, " ".join(parts)
        parts, depth = [], 0
    if parts:
        raise ParseError(f"the list of line {start} has no end", hint="close its brackets")


def _without_comment(line: str) -> str:
    """A comment begins at a `#` after a blank that is not in quotes."""
    at = 0
    while at < len(line):
        if line[at] in "'\"":
            end = line.find(line[at], at + 1)
            at = end if end >= 0 else len(line)
        elif line[at] == "#" and (at == 0 or line[at - 1].isspace()):
            return line[:at]
        at += 1
    return line


def _depth(line: str) -> int:
    bare = re.sub(r"\"[^\"]*\"|'[^']*'", "", line)
    return sum(bare.count(c) for c in "[{") - sum(bare.count(c) for c in "]}")


def scalar(text: str) -> object:
    """A value as YAML has it: a number, true, false, null or text."""
    if text[:1] in ("'", '"') and text:
        if len(text) < 2 or text[-1] != text[0]:
            raise ParseError(f"{text} has no end", hint="close its quotes")
        return text[1:-1]
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if len(text) > _LONGEST:
        return text
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

"""`Tokenizer`: text to tokens and back, by the `tokenizers` library, from a local folder."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from tokenizers import Tokenizer as Library

from rooflight.errors import UsageError
from rooflight.files import read_file
from rooflight.serve.chat.tools import MARKERS

_HINT = "save the model's fast tokenizer as tokenizer.json beside its weights"
_MOST_ID = 1 << 22  # vocabularies have a quarter of a million


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """The tokenizer of a folder, and the bytes of each token if it is a byte-level one."""

    library: Library
    path: Path
    stop_tokens: frozenset[int]
    special: frozenset[int]  # not shown in a text
    bytes_of: tuple[bytes, ...] | None = field(repr=False)

    def encode(self, text: str, *, with_special: bool) -> tuple[int, ...]:
        return tuple(self.library.encode(text, add_special_tokens=with_special).ids)

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens, special ones left out."""
        shown = [token for token in tokens if token not in self.special]
        return self.library.decode(shown, skip_special_tokens=False)

    def piece(self, token: int) -> bytes:
        """The bytes of one token, special ones too; for lists of log probabilities."""
        if self.bytes_of is not None and token < len(self.bytes_of):
            return self.bytes_of[token]
        return self.library.decode([token], skip_special_tokens=False).encode()


def load_tokenizer(folder: Path) -> Tokenizer:
    """Reads tokenizer.json, and the tokens that end a text from the configs beside it."""
    path = folder / "tokenizer.json"
    try:
        text = read_file(path, hint=_HINT)
        document = json.loads(text)
        library = Library.from_str(text)
    except UsageError:
        raise
    except Exception as error:  # the library raises bare Exceptions
        raise UsageError(f"cannot read a tokenizer from {path}: {error}", hint=_HINT) from None
    highest = max(library.get_vocab(with_added_tokens=True).values(), default=0)
    if highest > _MOST_ID:
        raise UsageError(f"{path} has a token with the id {highest}", hint=_HINT)
    library.no_padding()
    library.no_truncation()
    added = library.get_added_tokens_decoder()
    hidden = {id: token for id, token in added.items() if token.content not in MARKERS}
    special = frozenset(id for id, token in hidden.items() if token.special)
    pieces = _bytes_of(library) if _is_byte_level(document.get("decoder")) else None
    return Tokenizer(library, path, _stop_tokens(folder), special, pieces)


def _is_byte_level(decoder: Any) -> bool:
    """Whether the decoder joins bytes and does nothing else."""
    if not isinstance(decoder, dict):
        return False
    found = cast(dict[str, Any], decoder)
    if found.get("type") == "Sequence":
        inner = cast(list[Any], found.get("decoders", []))
        return len(inner) == 1 and _is_byte_level(inner[0])
    return found.get("type") == "ByteLevel"


def _bytes_of(library: Library) -> tuple[bytes, ...]:
    """Byte-level vocabularies write each byte as a character; other text stands for itself."""
    byte_of = _characters_of_bytes()
    tokens = {id: token for token, id in library.get_vocab(with_added_tokens=True).items()}
    pieces: list[bytes] = []
    for id in range(max(tokens, default=-1) + 1):
        token = tokens.get(id, "")
        is_bytes = all(c in byte_of for c in token)
        pieces.append(bytes(byte_of[c] for c in token) if is_bytes else token.encode())
    return tuple(pieces)


def _characters_of_bytes() -> dict[str, int]:
    """Printable bytes are their own characters, the others the first that are free above 255."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    table = {chr(b): b for b in printable}
    return table | {chr(256 + i): b for i, b in enumerate(others)}


def _stop_tokens(folder: Path) -> frozenset[int]:
    """Those of generation_config.json, or else of config.json."""
    for name in ("generation_config.json", "config.json"):
        path = folder / name
        found = read_object(path, hint=_HINT).get("eos_token_id") if path.exists() else None
        if found is None:
            continue
        ids = cast(list[object], found) if isinstance(found, list) else [found]
        if not all(type(id) is int and 0 <= id <= _MOST_ID for id in ids):
            raise UsageError(f"{path} has an eos_token_id that is none", hint=_HINT)
        return frozenset(cast(list[int], ids))
    return frozenset()


def read_object(path: Path, *, hint: str) -> dict[str, Any]:
    """A JSON file of names and values; nothing where it holds something else."""
    try:
        found = json.loads(read_file(path, hint=hint))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} must be JSON: {error}", hint=hint) from None
    return cast(dict[str, Any], found) if isinstance(found, dict) else {}

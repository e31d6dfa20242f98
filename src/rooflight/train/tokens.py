"""Text as tokens on disk: made once, then mapped into memory and read row by row.

In: text files and a tokenizer (or the size of one to be made of the text itself). Out: a folder
with `tokens-*.bin`, sums of their parts, `tokenizer.json` and `index.json`. No process ever holds
the whole of it. A part is compared with its sum when the first record of it is read, so that no
token is trained on that is not the one that was written.
"""

import hashlib
import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rooflight.errors import ParseError, UsageError
from rooflight.plan.file.codec import decode, encode

INDEX, TOKENIZER = "index.json", "tokenizer.json"
_END = "<|endoftext|>"  # after each file
_HINT = "rooflight tokens TEXT... --out FOLDER makes such a folder"
_READ_CHARS = 1 << 22
_FILE_TOKENS = 1 << 25  # of one file of tokens
_PART_BYTES = 1 << 16  # of a file that have one sum
_AGAIN = "make the folder anew with `rooflight tokens`"


@dataclass(frozen=True, slots=True)
class TokenIndex:
    """What is in a folder of tokens."""

    vocab: int
    num_tokens: int
    dtype: str
    files: tuple[str, ...]
    file_tokens: tuple[int, ...]
    file_sums: tuple[str, ...]  # a digest of the sums of a file's parts, which lie beside it
    unigram_nats: float  # the loss of a model that knows how often tokens occur and nothing else


def write_tokens(
    texts: Sequence[Path], folder: Path, *, tokenizer: Path | None = None, vocab: int = 4096
) -> TokenIndex:
    """Tokenises files of text; without a tokenizer a byte-level BPE is made of them first."""
    folder.mkdir(parents=True, exist_ok=True)
    words = _load_tokenizer(tokenizer) if tokenizer else _make_tokenizer(texts, vocab)
    words.save(str(folder / TOKENIZER))
    size = int(words.get_vocab_size())
    dtype = np.dtype(np.uint16 if size <= 1 << 16 else np.uint32)
    counts = np.zeros(size, np.int64)
    files: dict[str, int] = {}
    sums: list[str] = []
    for number, ids in enumerate(_files(_encoded(texts, words))):
        name = f"tokens-{number:05d}.bin"
        written = ids.astype(dtype)
        written.tofile(folder / name)
        sums.append(_write_sums(folder / name, written))
        files[name] = len(ids)
        counts += np.bincount(ids, minlength=size)
    index = TokenIndex(
        size,
        sum(files.values()),
        dtype.name,
        (*files,),
        (*files.values(),),
        (*sums,),
        _entropy(counts),
    )
    (folder / INDEX).write_text(json.dumps(encode(index), indent=2) + "\n", encoding="utf-8")
    return index


def _write_sums(path: Path, ids: npt.NDArray[Any]) -> str:
    data = ids.tobytes()
    parts = range(0, len(data), _PART_BYTES)
    sums = np.array([zlib.crc32(data[at : at + _PART_BYTES]) for at in parts], np.uint32)
    sums.tofile(path.with_suffix(".crc"))
    return hashlib.sha256(sums.tobytes()).hexdigest()


def _read_sums(path: Path, digest: str) -> npt.NDArray[np.uint32]:
    try:
        found = np.fromfile(path.with_suffix(".crc"), np.uint32)
    except OSError as error:
        raise ParseError(
            f"the sums of {path} cannot be read: {error.strerror}", hint=_AGAIN
        ) from None
    if hashlib.sha256(found.tobytes()).hexdigest() != digest:
        raise ParseError(f"the sums of {path} are not those that were written", hint=_AGAIN)
    return found


def _entropy(counts: npt.NDArray[np.int64]) -> float:
    share = counts[counts > 0] / counts.sum()
    return float(-(share * np.log(share)).sum())


def _load_tokenizer(path: Path) -> Any:  # tokenizers has no types
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise UsageError(
            f"{path} must be a tokenizer: {error}", hint="give the tokenizer.json of a model"
        ) from None


def _make_tokenizer(texts: Sequence[Path], vocab: int) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    words = Tokenizer(models.BPE())
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab, special_tokens=[_END], initial_alphabet=alphabet, show_progress=False
    )
    words.train_from_iterator((part for text in texts for part in _parts(text)), trainer)
    return words


def _parts(text: Path) -> Iterator[str]:
    """A file in pieces that end where a line does."""
    try:
        with text.open(encoding="utf-8", errors="replace") as file:
            while lines := file.readlines(_READ_CHARS):
                yield "".join(lines)
    except OSError as error:
        raise UsageError(
            f"{text} cannot be read: {error.strerror}", hint="give files of text"
        ) from None


def _encoded(texts: Sequence[Path], words: Any) -> Iterator[npt.NDArray[np.int64]]:
    end = words.token_to_id(_END)
    for text in texts:
        for part in _parts(text):
            yield np.array(words.encode(part, add_special_tokens=False).ids, np.int64)
        if end is not None:
            yield np.array([end], np.int64)


def _files(parts: Iterator[npt.NDArray[np.int64]]) -> Iterator[npt.NDArray[np.int64]]:
    """Joined until a file is full."""
    held: list[npt.NDArray[np.int64]] = []
    for part in parts:
        held.append(part)
        if sum(map(len, held)) >= _FILE_TOKENS:
            yield np.concatenate(held)
            held = []
    if held:
        yield np.concatenate(held)


def read_index(folder: Path) -> TokenIndex:
    path = folder / INDEX
    try:
        return decode(TokenIndex, json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", hint=_HINT) from None
    except ValueError as error:
        raise ParseError(f"{path}: {error}", hint=_HINT) from None


def check_data(folder: Path, vocab: int) -> None:
    """Refuses tokens that a model does not know, before anything is started."""
    found = read_index(folder)
    if found.vocab > vocab:
        raise UsageError(
            f"the tokens of {folder} are of {found.vocab} kinds, and the model knows {vocab}",
            hint=f"make them with the model's own tokenizer, or with --vocab {vocab} at the most",
        )


def data_digest(folder: Path) -> str:
    """Of the index, and so of every token: it has the digest of each file's sums."""
    index = folder / INDEX
    return hashlib.sha256(index.read_bytes()).hexdigest()[:16] if index.exists() else "not there"


class Records:
    """Records of `seq` tokens and the one after, as an array that is read where it is asked."""

    def __init__(self, folder: Path, seq: int) -> None:
        self._folder, self._seq = folder, seq
        self.index = read_index(folder)
        dtype = np.dtype(self.index.dtype)
        self._files = [np.memmap(folder / name, dtype, "r") for name in self.index.files]
        lengths = [len(file) for file in self._files]
        if lengths != [*self.index.file_tokens]:
            raise ParseError(
                f"the files of {folder} have {lengths} tokens, its index says"
                f" {[*self.index.file_tokens]}",
                hint=_AGAIN,
            )
        self._sums = [
            _read_sums(folder / name, digest)
            for name, digest in zip(self.index.files, self.index.file_sums, strict=True)
        ]
        self._is_checked = [np.zeros(len(sums), np.bool_) for sums in self._sums]
        self._starts = np.cumsum([0, *((n - 1) // seq for n in lengths)])
        if len(self) == 0:
            raise UsageError(
                f"{folder} has {self.index.num_tokens} tokens, not one record of {seq + 1}",
                hint="give more text or a shorter sequence",
            )

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getitem__(self, index: int) -> npt.NDArray[np.int32]:
        at = int(np.searchsorted(self._starts, index, side="right")) - 1
        begin = (index - int(self._starts[at])) * self._seq
        end = begin + self._seq + 1
        self._check(at, begin, end)
        return self._files[at][begin:end].astype(np.int32)

    def _check(self, file: int, begin: int, end: int) -> None:
        """Compares the parts that hold these tokens with their sums, once."""
        ids, checked = self._files[file], self._is_checked[file]
        size = ids.dtype.itemsize
        for part in range(begin * size // _PART_BYTES, (end * size - 1) // _PART_BYTES + 1):
            if checked[part]:
                continue
            first, step = part * _PART_BYTES // size, _PART_BYTES // size
            if zlib.crc32(ids[first : first + step].tobytes()) != self._sums[file][part]:
                raise ParseError(
                    f"bytes {part * _PART_BYTES} to {(part + 1) * _PART_BYTES} of"
                    f" {self._folder / self.index.files[file]} are not those that were written",
                    hint=_AGAIN,
                )
            checked[part] = True


class RecordRange:
    """Some of the records that follow each other, as an array."""

    def __init__(self, records: Records, numbers: range) -> None:
        self._records, self._numbers = records, numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: int) -> npt.NDArray[np.int32]:
        return self._records[self._numbers[index]]


def split_records(records: Records, held_out: int) -> tuple[RecordRange, RecordRange]:
    """Records to train on, and the last ones, to validate on; a token is a target in one of both.

    Text that follows itself is held out, so that little of it is like the text beside it.
    """
    rest = len(records) - held_out
    if rest < 1:
        raise UsageError(
            f"{held_out} records held out of {len(records)} leave none to train on",
            hint="give more text or fewer --validate-batches",
        )
    return RecordRange(records, range(rest)), RecordRange(records, range(rest, len(records)))

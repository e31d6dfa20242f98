"""Seals: what a finished checkpoint's files were, so that a damaged one is never loaded.

In: a checkpoint's folder, once it is there whole. Out: `seal.I-of-N.json`, one a process, each
with the size and SHA-256 of every N-th file. A checkpoint whose seals are not all there, or one of
whose files is missing, of another size or of other bytes, is not used. Checking is shared out the
same way, so that no host reads more than its part.
"""

import hashlib
import json
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from rooflight.errors import ParseError, RooflightError
from rooflight.plan.file.codec import decode, encode

_SEAL = re.compile(r"seal\.(\d+)-of-(\d+)\.json")
_CHUNK = 1 << 22


@dataclass(frozen=True, slots=True)
class Sealed:
    """A file as it was written."""

    nbytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Seal:
    """One process's part of a checkpoint's files."""

    files: Mapping[str, Sealed]


def write_seal(folder: Path, index: int, count: int) -> None:
    """Seals this process's part; it is there whole or not at all."""
    files = [*_files(folder)][index::count]
    seal = Seal({n: Sealed((folder / n).stat().st_size, _digest(folder / n)) for n in files})
    path = folder / f"seal.{index}-of-{count}.json"
    new = path.with_suffix(".new")
    with new.open("w", encoding="utf-8") as file:
        json.dump(encode(seal), file)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


class Sealing(threading.Thread):
    """Writes a seal behind the steps."""

    def __init__(self, folder: Path, index: int, count: int) -> None:
        super().__init__(daemon=True)
        self._part = (folder, index, count)
        self._error: OSError | None = None

    def run(self) -> None:
        try:
            write_seal(*self._part)
        except OSError as error:
            self._error = error

    def is_done(self) -> bool:
        """Raises what went wrong: a checkpoint without its seal is not saved."""
        if self._error is not None:
            raise RooflightError(f"{self._part[0]} cannot be sealed: {self._error}")
        return not self.is_alive()


def is_sealed(folder: Path) -> bool:
    """Are all seals there? Says nothing of the files."""
    return bool(_seals(folder))


def damage(folder: Path, index: int = 0, count: int = 1) -> str | None:
    """What is wrong with this process's part of a checkpoint, or None.

    The list of files is checked by all, their bytes by one process each.
    """
    seals = _seals(folder)
    if not seals:
        return "not all of its seals are there"
    told: dict[str, Sealed] = {}
    for path in seals:
        try:
            told |= decode(Seal, json.loads(path.read_text(encoding="utf-8"))).files
        except (OSError, ValueError, ParseError):
            return f"{path.name} cannot be read"
    missing = sorted(set(told) - set(_files(folder)))
    if missing:
        return f"{missing[0]} is missing"
    for name in sorted(told)[index::count]:
        if (folder / name).stat().st_size != told[name].nbytes:
            found = (folder / name).stat().st_size
            return f"{name} has {found} bytes, not {told[name].nbytes}"
        if _digest(folder / name) != told[name].sha256:
            return f"{name} has other bytes than were written"
    return None


def set_aside_unsealed(folder: Path, tell: Callable[..., None]) -> None:
    """A save that a crash cut short: the last one is kept to be looked at, none before it."""
    for path in [p for p in folder.iterdir() if p.name.isdigit() and not is_sealed(p)]:
        for older in folder.glob("*.unfinished"):
            shutil.rmtree(older)
        tell("unfinished", step=int(path.name))
        _rename(path, path.with_name(f"{path.name}.unfinished"))


def set_aside(path: Path) -> None:
    """Out of the way but not deleted: somebody may want to know what happened to it."""
    number, aside = 0, path.with_name(f"{path.name}.damaged")
    while aside.exists():
        number += 1
        aside = path.with_name(f"{path.name}.damaged-{number}")
    _rename(path, aside)


def _rename(path: Path, aside: Path) -> None:
    try:
        path.rename(aside)
    except OSError as error:
        raise RooflightError(f"{path} cannot be set aside: {error}") from None


def _seals(folder: Path) -> list[Path]:
    """All of them, or none if one is not there."""
    found = [(path, _SEAL.fullmatch(path.name)) for path in sorted(folder.glob("seal.*.json"))]
    named = [(path, int(match[1]), int(match[2])) for path, match in found if match]
    counts = {count for _, _, count in named}
    whole = len(counts) == 1 and {at for _, at, _ in named} == set(range(counts.pop()))
    return [path for path, _, _ in named] if whole else []


def _files(folder: Path) -> Iterator[str]:
    """Every file of a checkpoint but its seals, in one order for all."""
    found = (p.relative_to(folder) for p in folder.rglob("*") if p.is_file())
    return iter(sorted(str(p) for p in found if not p.name.startswith("seal.")))


def _digest(path: Path) -> str:
    found = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            found.update(chunk)
    return found.hexdigest()

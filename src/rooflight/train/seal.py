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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from rooflight.errors import ParseError
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

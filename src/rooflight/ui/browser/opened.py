"""What is there to open: verdicts, plans, dumps of XLA and folders of runs.

In: the files that the explorer may read. Out: those that it understands, with their kind. A file
is told by its first bytes, so a folder of many large ones is listed at once.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rooflight.errors import UsageError
from rooflight.ui.browser.view import Files

Kind = Literal["verdict", "plan", "dump", "run"]
_MOST_LISTED = 100
_MOST_LOOKED_AT = 2000
_HEAD = 400  # bytes
_VERB = re.compile(rb'"verb"\s*:\s*"(\w+)"')
_LARGEST = 256_000_000  # bytes of one file


@dataclass(frozen=True, slots=True)
class Artifact:
    """Something that a view understands."""

    kind: Kind
    path: Path
    name: str  # as a question names it


def list_files(files: Files, *kinds: Kind) -> list[Artifact]:
    """What was opened by name, then what lies in the folder; at most a hundred."""
    found: list[Artifact] = []
    for path, name in _candidates(files):
        kind = kind_of(path)
        if kind in kinds:
            found.append(Artifact(kind, path, name))
        if len(found) == _MOST_LISTED:
            break
    return found


def _candidates(files: Files) -> Iterator[tuple[Path, str]]:
    yield from ((path, str(path)) for path in files.opened)
    try:
        names = sorted(p.name for p in files.folder.iterdir() if not p.name.startswith("."))
    except OSError:
        return
    for name in names[:_MOST_LOOKED_AT]:
        yield files.folder / name, name


def kind_of(path: Path) -> Kind | None:
    """What a file or folder is, None if nothing of ours."""
    try:
        if path.is_dir():
            if (path / "events.jsonl").is_file() or (path / "run.json").is_file():
                return "run"
            return "dump" if next(path.glob("module_*.txt"), None) else None
        if not path.is_file():  # to open a pipe is to wait for who writes
            return None
        with path.open("rb") as file:
            head = file.read(_HEAD)
    except OSError:
        return None
    if head.startswith(b"HloModule"):
        return "dump"
    verb = _VERB.search(head)
    known: dict[bytes, Kind] = {b"verify": "verdict", b"plan": "plan"}
    return known.get(verb[1]) if verb else None


def require_small(path: Path) -> None:
    """A file that a page can wait for."""
    size = path.stat().st_size
    if size > _LARGEST:
        raise UsageError(
            f"{path.name} has {size:,} bytes, more than a page can wait for",
            hint="read it in a terminal, with `rooflight hlo` or `rooflight verify --html`",
        )

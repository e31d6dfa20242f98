"""The results of compiles on disk: one folder each, named by everything that decides the result.

The key is the lowered program with its source lines, the target, the options, how far to go, and
the versions of the compiler. Only finished results enter, by one rename, and leave by one, so
readers in any process see all or nothing. The least recently used leave when the folder is full.
A folder with a name that the cache does not give is somebody else's, and never touched.
"""

import hashlib
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from rooflight.compile.aot.request import ChildTask
from rooflight.files import user_cache

_VARIABLE = "ROOFLIGHT_CACHE"
MOST_BYTES = 2 * 10**9
# A caller that was handed a result may still be reading it; a compile takes minutes at most.
_GRACE_S = 900.0
_STALE_S = 86400.0  # the work folder of a process that was killed
_WORK, _EVICTED, _FAILED = "rooflight-work-", "rooflight-evicted-", "failed-"
_NAMES = re.compile(rf"({_EVICTED}\d+-)*({_WORK}\w+|({_FAILED})?[0-9a-f]{{32}})")


def cache_folder() -> Path:
    """`$ROOFLIGHT_CACHE`, else the user's own cache folder."""
    chosen = os.environ.get(_VARIABLE)
    return Path(chosen) if chosen else user_cache() / "compiled"


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """A result on disk, when it was last handed out, and its size."""

    path: Path
    used_s: float
    nbytes: int


def cache_entries(folder: Path) -> list[CacheEntry]:
    """Every folder that the cache made, the least recently used first."""
    found: list[CacheEntry] = []
    for path in folder.iterdir() if folder.is_dir() else ():
        if not _NAMES.fullmatch(path.name) or path.is_symlink() or not path.is_dir():
            continue
        try:
            used_s = path.stat().st_mtime
            nbytes = sum(f.stat().st_size for f in path.rglob("*") if f.is_file())
        except FileNotFoundError:  # another process has just removed it
            continue
        found.append(CacheEntry(path, used_s, nbytes))
    return sorted(found, key=lambda entry: entry.used_s)


def use(entry: Path) -> bool:
    """Marks a result as used now; False if there is none."""
    try:
        os.utime(entry)
    except FileNotFoundError:
        return False
    return True


def evict(folder: Path, *, most_bytes: int = MOST_BYTES, now_s: float | None = None) -> int:
    """Removes the least recently used results until the rest fits; the bytes that were freed.

    What was used in the last minutes stays, even if the folder is then too full.
    """
    now = time.time() if now_s is None else now_s
    entries = cache_entries(folder)
    total, freed = sum(e.nbytes for e in entries), 0
    for entry in entries:
        age_s = now - entry.used_s
        is_passing = entry.path.name.startswith((_WORK, _EVICTED))
        is_old = age_s > (_STALE_S if is_passing else _GRACE_S)
        if is_old and (is_passing or total - freed > most_bytes) and _remove(entry.path):
            freed += entry.nbytes
    return freed


def _remove(path: Path) -> bool:
    """Takes a folder out of sight at once, then deletes it; False if another process did."""
    try:
        hidden = path.rename(path.with_name(f"{_EVICTED}{os.getpid()}-{path.name}"))
    except FileNotFoundError:
        return False
    shutil.rmtree(hidden, ignore_errors=True)
    return True


def work_folder(folder: Path) -> Path:
    """An empty folder in which a result is made."""
    return Path(tempfile.mkdtemp(prefix=_WORK, dir=folder))


def failed(entry: Path) -> Path:
    """The place of a result that is looked at, and never handed out again."""
    return entry.with_name(f"{_FAILED}{entry.name}")


def cache_key(program: str, task: ChildTask, versions: Mapping[str, str]) -> str:
    """One name for one result."""
    facts = {
        "program": hashlib.sha256(program.encode()).hexdigest(),
        "target": asdict(task.target),
        "until": task.request.until,
        "options": dict(task.request.options),
        "versions": dict(versions),
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]


def keep(work: Path, entry: Path) -> Path:
    """Moves a finished result into the cache; the first of two equal ones stays."""
    entry.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.rename(work, entry)
    except OSError:  # another process was first, or the cache is on another disk
        if not entry.exists():
            shutil.copytree(work, entry)
        shutil.rmtree(work)
    return entry

"""The results of compiles on disk: one folder each, named by everything that decides the result.

The key is the lowered program with its source lines, the target, the options, how far to go, and
the versions of the compiler. Only finished results enter, by one rename, so readers see all or
nothing.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from rooflight.verify.request import ChildTask

_VARIABLE = "ROOFLIGHT_CACHE"


def cache_folder() -> Path:
    """`$ROOFLIGHT_CACHE`, else the user's own cache folder."""
    if chosen := os.environ.get(_VARIABLE):
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "rooflight" / "compiled"


def cache_bytes(folder: Path) -> int:
    """What the cache takes on disk."""
    return sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())


def cache_key(program: str, task: ChildTask, versions: Mapping[str, str]) -> str:
    """One name for one result."""
    facts = {
        "program": hashlib.sha256(program.encode()).hexdigest(),
        "target": asdict(task.target),
        "until": task.until,
        "options": dict(task.options),
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

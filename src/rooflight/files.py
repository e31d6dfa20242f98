"""Files that somebody else wrote: regular ones of bounded size, or a sentence. And a cache."""

import os
import stat
import sys
import tempfile
from functools import cache
from pathlib import Path

from rooflight.errors import UsageError

MOST_BYTES = 64 << 20


def read_file(path: str | Path, *, hint: str, most_bytes: int = MOST_BYTES) -> str:
    """The text of a file; a pipe, a device or one that is too large is refused without waiting."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(file, "rb") as opened:
            status = os.fstat(file)
            if not stat.S_ISREG(status.st_mode):
                raise OSError("it must be a regular file")
            if status.st_size > most_bytes:
                raise OSError(f"it has {status.st_size} bytes, of at most {most_bytes}")
            return opened.read(most_bytes).decode("utf-8")
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise UsageError(f"cannot read {path}: {why}", hint=hint) from None


def user_cache() -> Path:
    """A folder of this user's for what can be made again; one in /tmp where home is read-only."""
    return _cache(os.environ.get("XDG_CACHE_HOME"), os.environ.get("HOME"))


@cache
def _cache(base: str | None, _home: str | None) -> Path:
    try:
        folder = (Path(base) if base else Path.home() / ".cache") / "rooflight"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if os.access(folder, os.W_OK | os.X_OK):
            return folder
        why = f"{folder} cannot be written"
    except (OSError, RuntimeError) as error:  # no home at all
        why = str(error)
    other = _temporary() / f"rooflight-{os.getuid()}"
    if other.parent == Path():
        raise UsageError(
            f"{why}, and there is no temporary folder that can be",
            hint="set XDG_CACHE_HOME to a folder that can be written",
        )
    other.mkdir(mode=0o700, exist_ok=True)
    if not is_own(other):
        raise UsageError(
            f"{why}, and {other} can be written by others", hint="set XDG_CACHE_HOME to a folder"
        )
    print(f"{why}: what is compiled is kept in {other}", file=sys.stderr)
    return other


def _temporary() -> Path:
    """Where temporary files go; nowhere rather than where one happens to be."""
    try:
        found = tempfile.gettempdir()
    except FileNotFoundError:
        return Path()
    return Path() if found == os.getcwd() else Path(found)


def is_own(path: Path) -> bool:
    """Whether it is there, this user's, no link, and nobody else may write it."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return False
    is_kind = stat.S_ISDIR(status.st_mode) or stat.S_ISREG(status.st_mode)
    return is_kind and status.st_uid == os.getuid() and not status.st_mode & 0o022


def raise_file_limit() -> None:
    """Thousands of connections need as many files."""
    import resource  # of Unix

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

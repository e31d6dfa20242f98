"""A shared folder whose disk fills, errs and cuts writes short, under the product's own files.

In: a `Disk`. Out: `SimPath`, a path whose files are real and whose errors are drawn.
"""

import errno
import os
from pathlib import Path, PosixPath
from typing import IO, Any

from .story import Story


class Disk:
    """What goes wrong at the moment."""

    def __init__(self, story: Story) -> None:
        self.story = story
        self.is_full = False
        self.errors = 0.0  # chance of a write that fails

    def check(self) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        if self.errors and self.story.happens(self.errors):
            self.story.tell("an input/output error")
            raise OSError(errno.EIO, "Input/output error")

    # What `os` has, for modules that write by it

    def write(self, handle: int, data: bytes) -> int:
        """A disk that is nearly full takes part of a line, then none."""
        if self.is_full and self.story.happens(0.5):
            cut = self.story.draw.randrange(len(data))
            self.story.tell(f"a write of {len(data)} bytes ends after {cut}")
            return os.write(handle, data[:cut])
        self.check()
        return os.write(handle, data)

    def fsync(self, handle: int) -> None:
        self.check()

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)


class _File:
    """A file to write, on a disk that may be full by now."""

    def __init__(self, file: IO[Any], disk: Disk) -> None:
        self._file, self._disk = file, disk

    def write(self, data: Any) -> int:
        if self._disk.is_full:
            self._file.write(data[: len(data) // 2])
        self._disk.check()
        return self._file.write(data)

    def __enter__(self) -> "_File":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class SimPath(PosixPath):
    """A path on the disk of the simulation at hand."""

    disk: Disk

    def open(self, mode: str = "r", *more: Any, **options: Any) -> Any:
        if "r" in mode:
            return super().open(mode, *more, **options)
        self.disk.check()
        return _File(super().open(mode, *more, **options), self.disk)

    def mkdir(self, *given: Any, **options: Any) -> None:
        if not self.exists():
            self.disk.check()
        super().mkdir(*given, **options)

    def replace(self, target: Any) -> Any:
        self.disk.check()
        return super().replace(target)


def folder_on(disk: Disk, path: Path) -> SimPath:
    SimPath.disk = disk
    return SimPath(path)

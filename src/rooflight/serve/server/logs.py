"""`Log`: a line of JSON for each event; lengths, ids and times, never texts or keys.

Lines go through a bounded queue to a thread that writes them. Serving never waits for it: when the
queue is full, or the disk, lines are dropped and counted.
"""

import json
import os
import queue
import threading
import time
from contextlib import suppress

_MOST_LINES = 10_000
_CLOSE_SECONDS = 2.0
_STDERR = 2
Value = str | int | float | bool | None


class Log:
    """Writes events to a file or to stderr."""

    def __init__(self, path: str | None = None) -> None:
        self.dropped = 0
        self._path = path
        self._file: int | None = None  # a descriptor
        self._lines: queue.Queue[str | None] = queue.Queue(_MOST_LINES)
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        self._thread.start()

    def event(self, name: str, **fields: Value) -> None:
        """Queues one line; returns at once."""
        line = json.dumps({"time": round(time.time(), 6), "event": name, **fields})
        try:
            self._lines.put_nowait(line + "\n")
        except queue.Full:
            self.dropped += 1

    def close(self) -> None:
        """Writes what is queued, if that takes no longer than a moment."""
        try:
            self._lines.put(None, timeout=_CLOSE_SECONDS)
        except queue.Full:
            return
        self._thread.join(_CLOSE_SECONDS)

    def _run(self) -> None:
        while (line := self._lines.get()) is not None:
            try:
                self._write(line.encode())
            except OSError:  # full, gone or closed: the next line tries again
                self.dropped += 1
                self._close_file()
        self._close_file()

    def _write(self, line: bytes) -> None:
        if self._path is None:
            os.write(_STDERR, line)
            return
        if self._file is None:
            self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        written = os.write(self._file, line)
        if written < len(line):  # the disk is full: all of a line, or nothing
            os.ftruncate(self._file, os.lseek(self._file, 0, os.SEEK_END) - written)
            raise OSError("no room for a line")

    def _close_file(self) -> None:
        if self._file is not None:
            with suppress(OSError):
                os.close(self._file)
            self._file = None

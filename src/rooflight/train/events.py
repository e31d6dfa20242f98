"""The event log of a run: one JSON object a line, appended where it happens; and its goodput.

In: events as they happen. Out: `events.jsonl`, and from it how the time was spent: steps that
count, steps repeated after a restart, starting, waiting. A last line that was cut short by a
crash is passed over.
"""

import errno
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

FILE = "events.jsonl"
Event = Mapping[str, object]


class EventLog:
    """Appends to a run's log; a full disk costs the log a line, never the run a step."""

    def __init__(self, folder: Path, *, attempt: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path, self._attempt = folder / FILE, attempt

    def tell(self, event: str, **facts: object) -> None:
        line = {"time": time.time(), "event": event, "attempt": self._attempt, **facts}
        try:
            self._append((json.dumps(line) + "\n").encode())
        except OSError as error:
            print(f"an event was lost: {error}", file=sys.stderr, flush=True)

    def _append(self, line: bytes) -> None:
        """In one write, so that lines of two processes never mix, nor with one cut short before."""
        handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            size = os.fstat(handle).st_size
            if size and os.pread(handle, 1, size - 1) != b"\n":
                line = b"\n" + line
            if os.write(handle, line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            os.close(handle)


def read_events(folder: Path) -> Iterator[Event]:
    """Every event that was written whole, in order."""
    try:
        lines = (folder / FILE).read_bytes().split(b"\n")
    except FileNotFoundError:
        return
    for line in lines:
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if isinstance(found, dict) and "event" in found:
            yield cast(Event, found)


def losses(folder: Path) -> dict[int, float]:
    """The loss of every step; of one repeated, the last."""
    return _losses(folder, "step")


def validation_losses(folder: Path) -> dict[int, float]:
    """The loss on held-out data after so many steps."""
    return _losses(folder, "validated")


def _losses(folder: Path, event: str) -> dict[int, float]:
    found = (e for e in read_events(folder) if e["event"] == event)
    return {int(cast(int, e["step"])): float(cast(float, e["loss"])) for e in found}


@dataclass(frozen=True, slots=True)
class Goodput:
    """Seconds of a run by what they were for."""

    wall_s: float
    steps_s: float  # steps that count
    repeated_s: float  # steps whose results a failure took
    saving_s: float  # that steps waited for a save; the rest of it is written beside them
    attempts: int

    @property
    def share(self) -> float:
        return self.steps_s / self.wall_s if self.wall_s else 0.0


def goodput(folder: Path) -> Goodput:
    """How much of the time since the first event went into steps that count."""
    first = last = 0.0
    seconds: dict[int, float] = {}
    repeated, saving, attempts = 0.0, 0.0, set[int]()
    for event in read_events(folder):
        last = float(cast(float, event["time"]))
        first = first or last
        attempts.add(int(cast(int, event["attempt"])))
        if event["event"] == "step":
            step = int(cast(int, event["step"]))
            repeated += seconds.get(step, 0.0)
            seconds[step] = float(cast(float, event["seconds"]))
        elif event["event"] == "save":
            saving += float(cast(float, event["seconds"]))
    return Goodput(last - first, sum(seconds.values()), repeated, saving, len(attempts))

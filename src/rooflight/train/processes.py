"""The worker processes of one host: started, watched, ended.

A worker that ends, or is silent for longer than its steps explain, is a failure. What it wrote to
stderr goes to a file of the run, and the last lines of it into the diagnosis.
"""

import asyncio
import json
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, cast

from rooflight.train.worker import PREEMPTED

LOGS = "logs"
_STEPS_OF_SILENCE = 20  # of the longest step so far
_TAIL_LINES, _TAIL_BYTES = 6, 4096
_BUSY = ("began", "restored", "compiled", "save", "waits", "validates")
_LEAST_FREE = 1 << 20  # bytes
_NOISE = ("[Gloo]", "WARNING: All log messages", "I0000", "W0000", "    @ ")  # and stack frames


@dataclass(frozen=True, slots=True)
class HangTimeout:
    """Seconds of silence after which a worker counts as hung."""

    start_s: float  # before its first step, and while it saves or validates
    step_s: float  # between steps, at the least


@dataclass(slots=True)
class Worker:
    """A process of the run."""

    index: int
    process: asyncio.subprocess.Process
    log: Path
    log_start: int  # bytes of attempts before
    heard: float  # when it last said anything
    busy: bool = True  # starting, saving or validating: silence is expected
    longest_s: float = 0.0

    def limit_s(self, hang_timeout: HangTimeout) -> float:
        if self.busy:
            return hang_timeout.start_s
        return max(hang_timeout.step_s, _STEPS_OF_SILENCE * self.longest_s)

    def take(self, fact: dict[str, object]) -> None:
        now = time.monotonic()
        if fact.get("event") == "step":
            if not self.busy:
                self.longest_s = max(self.longest_s, now - self.heard)
            self.busy = False
        elif fact.get("event") in _BUSY:
            self.busy = True
        self.heard = now


@dataclass(slots=True)
class Processes:
    """All workers of one attempt on one host."""

    run_folder: Path
    hang_timeout: HangTimeout
    on_fact: Callable[[int, dict[str, object]], None]
    _workers: list[Worker] = field(default_factory=list[Worker])
    _readers: list[asyncio.Task[None]] = field(default_factory=list["asyncio.Task[None]"])

    async def start(self, commands: Sequence[tuple[int, Sequence[str]]]) -> None:
        logs = self.run_folder / LOGS
        logs.mkdir(parents=True, exist_ok=True)
        for index, command in commands:
            log = logs / f"process-{index}.log"
            with log.open("ab") as file:
                before = file.tell()
                process = await self._spawn(command, file)
            worker = Worker(index, process, log, before, time.monotonic())
            self._workers.append(worker)
            self._readers.append(asyncio.create_task(self._read(worker)))

    async def _spawn(self, command: Sequence[str], log: IO[bytes]) -> asyncio.subprocess.Process:
        pipe = asyncio.subprocess.PIPE
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "rooflight.train.worker", *command),
            stdin=pipe,
            stdout=pipe,
            stderr=log,
            start_new_session=True,  # Ctrl-C is for the supervisor, who says what to do
        )

    async def _read(self, worker: Worker) -> None:
        assert worker.process.stdout is not None
        async for line in worker.process.stdout:
            try:
                fact = json.loads(line)
            except ValueError:
                continue
            if isinstance(fact, dict):
                found = cast(dict[str, object], fact)
                worker.take(found)
                self.on_fact(worker.index, found)

    async def end(self) -> tuple[str, str]:
        """How they ended: the first failure, or that all finished or were preempted."""
        while True:
            codes = {w.index: w.process.returncode for w in self._workers}
            for worker in self._workers:
                why = self._wrong(worker)
                if why:
                    return "failed", why
            if all(code is not None for code in codes.values()):
                return ("preempted" if PREEMPTED in codes.values() else "finished"), ""
            await asyncio.sleep(0.05)

    def _wrong(self, worker: Worker) -> str:
        code = worker.process.returncode
        if code is None:
            silent, limit = time.monotonic() - worker.heard, worker.limit_s(self.hang_timeout)
            if silent <= limit:
                return ""
            return f"process {worker.index} said nothing for {silent:.0f} s" + self._full()
        if code in (0, PREEMPTED):
            return ""
        how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        tail = _tail(worker.log, worker.log_start)
        return f"process {worker.index} {how}" + (f": {tail}" if tail else "") + self._full()

    def _full(self) -> str:
        """A full disk takes the log of what went wrong too, so it is looked for."""
        free = shutil.disk_usage(self.run_folder).free
        return f"; the disk of {self.run_folder} is full" if free < _LEAST_FREE else ""

    def signal(self, number: int) -> None:
        for worker in self._workers:
            if worker.process.returncode is None:
                worker.process.send_signal(number)

    async def kill(self) -> None:
        """Ends all of them at once: a process whose peer is dead waits for it."""
        for worker in self._workers:
            if worker.process.returncode is None:
                worker.process.kill()
        for worker in self._workers:
            await worker.process.wait()
        await asyncio.gather(*self._readers)
        self._workers, self._readers = [], []


def _tail(log: Path, start: int) -> str:
    """The last lines of what a process had to say, without what libraries always say."""
    try:
        with log.open("rb") as file:
            file.seek(max(start, log.stat().st_size - _TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    kept = [line.strip() for line in lines if line.strip() and not line.startswith(_NOISE)]
    return " | ".join(kept[-_TAIL_LINES:])

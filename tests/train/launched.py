"""`rooflight launch` as a real process tree, and what can be done to it from outside."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import cast

from rooflight.train.events import read_events

_STEP_WITHIN_S = 600.0

# Of machine code: a run that is started again and again mostly compiles.
COMPILES_QUICKLY = {
    "XLA_FLAGS": "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
}


class Launched:
    """A run under a supervisor. `command` is started again after its supervisor's end."""

    def __init__(
        self,
        words: Sequence[str],
        out: Path,
        *,
        log: Path | None = None,
        inside: Sequence[str] = (),  # what the command is a part of, such as `ip netns exec NAME`
    ) -> None:
        self._words, self.out, self._inside = [*words], out, [*inside]
        self._log = (log or out.parent / f"{out.name}.log").open("ab")
        self.popen: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "rooflight", "launch"]
        self.popen = subprocess.Popen(
            [*self._inside, *command, *self._words, "--out", str(self.out)],
            stdout=self._log,
            stderr=self._log,
            env=os.environ | COMPILES_QUICKLY,
        )

    def workers(self) -> list[int]:
        """Processes of the current attempt, by pid."""
        assert self.popen is not None
        path = Path(f"/proc/{self.popen.pid}/task/{self.popen.pid}/children")
        try:
            return [int(pid) for pid in path.read_text().split()]
        except FileNotFoundError:
            return []

    @property
    def step(self) -> int:
        """The last step that was told, of any attempt; -1 before the first."""
        found = [e for e in read_events(self.out) if e["event"] == "step"]
        return int(cast(int, found[-1]["step"])) if found else -1

    def wait_for(
        self, what: str, done: Callable[[], bool], seconds: float = _STEP_WITHIN_S
    ) -> None:
        until = time.monotonic() + seconds
        while not done():
            assert time.monotonic() < until, f"waited {seconds} s for {what}: {self.talk()}"
            time.sleep(0.01)

    def wait_for_step(self, step: int) -> None:
        self.wait_for(f"step {step}", lambda: self.step >= step or self.ended)

    @property
    def ended(self) -> bool:
        return self.popen is not None and self.popen.poll() is not None

    def end(self, seconds: float = _STEP_WITHIN_S) -> int:
        """Waits for the supervisor's own end."""
        assert self.popen is not None
        try:
            return self.popen.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"no end after {seconds} s: {self.talk()}") from None

    def kill(self) -> None:
        """The supervisor dies, and everything of it must."""
        assert self.popen is not None
        orphans = self.workers()
        self.popen.kill()
        self.popen.wait()
        for pid in orphans:
            _unfreeze(pid)
            self.wait_for(f"the end of {pid}", lambda pid=pid: not _alive(pid))

    def kill_worker(self, rng: random.Random) -> None:
        found = self.workers()
        if found:
            os.kill(rng.choice(found), signal.SIGKILL)

    def freeze_worker(self, rng: random.Random) -> None:
        found = self.workers()
        if found:
            os.kill(rng.choice(found), signal.SIGSTOP)

    def checkpoints(self) -> list[Path]:
        """Finished ones, by name, the newest last."""
        found = (self.out / "checkpoints").glob("*")
        return sorted((p for p in found if p.name.isdigit()), key=lambda p: int(p.name))

    def talk(self) -> str:
        self._log.flush()
        log = Path(self._log.name)
        return log.read_text(errors="replace")[-2000:]

    def close(self) -> None:
        if self.popen is not None and self.popen.poll() is None:
            self.kill()
        self._log.close()


def processes(*words: str) -> Iterator[int]:
    """Those of this machine whose command has all these words, NULs between."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found = path.read_bytes().decode(errors="replace")
        except OSError:
            continue
        if all(word in found for word in words):
            yield int(path.parent.name)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def _unfreeze(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGCONT)
    except ProcessLookupError:
        return

"""A process in which something of a stranger's is computed: it can hurt itself only.

`Bounded(module, told)` starts `python -m rooflight.serve.chat.bounded MODULE`, whose `make(told)`
gives a function; each task is a line of JSON in, its result a line out. A task that takes too much
time or memory ends the process, which is its answer; the next task starts another.
"""

import json
import resource
import select
import subprocess
import sys
import threading
from importlib import import_module
from pathlib import Path
from typing import Any

CPU_S = 1  # of a task; an ordinary one takes milliseconds
MEMORY_BYTES = 1 << 30  # beyond what the process has when it is ready
_START_CPU_S = 30
_WALL_S = 60.0  # on a machine that does not let it run
Json = Any


class TooMuch(Exception):
    """A task took more than it may."""


class Bounded:
    """The process, started when it is first asked; one task at a time."""

    def __init__(self, module: str, told: Json) -> None:
        self._module, self._told = module, json.dumps(told)
        self._process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()

    def ask(self, task: Json) -> Json:
        """The result of a task; raises `TooMuch`."""
        with self._lock:
            try:
                line = self._line(json.dumps(task))
            except OSError:  # it has just ended
                line = ""
            if not line:
                self._end()
                raise TooMuch
            return json.loads(line)

    def _line(self, task: str) -> str:
        if self._process is None or self._process.poll() is not None:
            self._end()
            command = [sys.executable, "-P", "-m", __name__, self._module]
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            self._say(self._process, self._told)
        self._say(self._process, task)
        assert self._process.stdout is not None
        is_there = select.select([self._process.stdout], [], [], _WALL_S)[0]
        return self._process.stdout.readline() if is_there else ""

    @staticmethod
    def _say(process: subprocess.Popen[str], line: str) -> None:
        assert process.stdin is not None
        print(line, file=process.stdin, flush=True)

    def stop(self) -> None:
        """A caller that waits for a result gets none."""
        if self._process is not None:
            self._process.kill()
        with self._lock:
            self._end()

    def __del__(self) -> None:
        self._end()

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def main(module: str) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _limit_cpu(_START_CPU_S)
    work = import_module(module).make(json.loads(sys.stdin.readline()))
    statm = Path("/proc/self/statm")
    if statm.exists():
        most = int(statm.read_text().split()[0]) * resource.getpagesize() + MEMORY_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    for line in sys.stdin:
        _limit_cpu(CPU_S)
        print(json.dumps(work(json.loads(line))), flush=True)


def _limit_cpu(seconds: int) -> None:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    most = int(usage.ru_utime + usage.ru_stime) + 1 + seconds
    resource.setrlimit(resource.RLIMIT_CPU, (most, resource.RLIM_INFINITY))


if __name__ == "__main__":
    main(sys.argv[1])

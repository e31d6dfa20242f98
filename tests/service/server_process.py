"""`rooflight serve` as a process, with compilations that are quick rather than good."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any  # JSON

from .client import Client

# Few shapes, so that it is warm in seconds; blocks of 128, so 4 of them hold the longest text.
SIZES = ("--rows", "4", "--step-tokens", "40", "--block-tokens", "128", "--max-tokens", "512")
MAX_TOKENS = 512
_WARM_SECONDS = 900
_ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false",
    # What one server has compiled the next one reads.
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}


@dataclass(frozen=True)
class Server:
    """A process that serves, and what it said when it started."""

    process: subprocess.Popen[str]
    said: Mapping[str, Any]
    log: Path

    @property
    def cpu_s(self) -> float:
        """CPU seconds of the process so far."""
        words = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def resident_bytes(self) -> int:
        """Memory of the process now."""
        pages = Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    @property
    def client(self) -> Client:
        return Client(self.said["host"], self.said["port"])

    def lines(self) -> list[dict[str, Any]]:
        """Of its log; one that is half written comes later."""
        whole = self.log.read_text().rpartition("\n")[0]
        return [json.loads(line) for line in whole.splitlines()]

    def end(self) -> int:
        """Asks it to stop; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(300)


def launch(
    folder: Path,
    *words: str,
    command: Sequence[str] | None = None,
    name: str = "main",
    key: str = "",
) -> Server:
    """Starts a process and reads where it listens; it is not warm yet."""
    log = folder.parent / f"{name}.log"
    start = command or (sys.executable, "-m", "rooflight", "serve")
    line = [*start, str(folder), "--port", "0", "--json", "--log", str(log), *SIZES, *words]
    process = subprocess.Popen(
        line,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={
            **os.environ,
            **_ENVIRONMENT,
            "JAX_COMPILATION_CACHE_DIR": str(folder.parent / "compiled"),
            "ROOFLIGHT_API_KEY": key,
        },
    )
    assert process.stdout is not None and process.stderr is not None
    text = process.stdout.readline()
    while not text.endswith("\n}\n"):  # one document, indented
        assert text, process.stderr.read()
        text += process.stdout.readline()
    return Server(process, json.loads(text), log)


@contextmanager
def start_server(
    folder: Path,
    *words: str,
    command: Sequence[str] | None = None,
    name: str = "main",
    key: str = "",
) -> Generator[Server]:
    """A warm server, ended with the block."""
    server = launch(folder, *words, command=command, name=name, key=key)
    try:
        wait_until_ready(server)
        yield server
    finally:
        server.process.kill()
        server.process.communicate()


def wait_until_ready(server: Server) -> None:
    end = time.monotonic() + _WARM_SECONDS
    while server.client.get("/ready").status != 200:
        assert server.process.poll() is None and time.monotonic() < end
        time.sleep(0.1)

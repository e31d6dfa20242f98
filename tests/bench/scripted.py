"""Starts the scripted server as a process of its own, and reads its log."""

import json
import subprocess
import sys
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_SERVER = Path(__file__).with_name("scripted_server.py")


@dataclass(frozen=True, slots=True)
class Scripted:
    url: str
    pid: int

    def log(self) -> list[dict[str, Any]]:
        """Every request but the first, with which a client asks how to ask."""
        with urllib.request.urlopen(f"{self.url}/log", timeout=300) as response:
            return json.load(response)[1:]


@contextmanager
def scripted(*scripts: dict[str, Any], refuses: tuple[str, ...] = ()) -> Generator[Scripted]:
    words = json.dumps({"scripts": scripts or [{}], "refuses": refuses})
    with subprocess.Popen(
        [sys.executable, str(_SERVER), words], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            yield Scripted(f"http://127.0.0.1:{int(process.stdout.readline())}", process.pid)
        finally:
            process.kill()

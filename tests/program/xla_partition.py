"""Asks XLA to partition the cases of a mesh, and stops it as soon as it has."""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

_WORKER = Path(__file__).with_name("xla_worker.py")
_SECONDS = 600  # a compile writes its dump after two or three, alone on a machine


def partitioned(mesh: str) -> str:
    """The HLO text right after partitioning of the program with every case of a mesh."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log")
        with log.open("w") as file:
            command = [sys.executable, str(_WORKER), mesh, folder]
            worker = subprocess.Popen(command, stdout=file, stderr=file)
        try:
            text = _wait(worker, Path(folder))
        finally:
            worker.kill()
            worker.wait()
        if text is None:
            raise RuntimeError(f"libtpu gave no dump for {mesh}:\n{log.read_text()[-2000:]}")
        return text


def _wait(worker: "subprocess.Popen[bytes]", folder: Path) -> str | None:
    """Polls for the dump; None if the worker ends, or the time is up, without one."""
    end = time.monotonic() + _SECONDS
    while time.monotonic() < end:
        has_ended = worker.poll() is not None
        for path in folder.glob("*.after_tpu-spmd-partitioning.*"):
            text = path.read_text()
            if "\nENTRY " in text and text.rstrip("\n").endswith("\n}"):  # written to its end
                return text
        if has_ended:
            return None
        time.sleep(0.05)
    return None

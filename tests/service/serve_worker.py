"""`rooflight serve` with a device that can be told to hang or to fail, by files.

Run as a process of its own: `python serve_worker.py SWITCHES FOLDER WORD...`. While SWITCHES/hang
exists a step waits, after as many more steps as it says; SWITCHES/fail makes one step raise. While
SWITCHES/hold exists, nothing but the first layers of a prompt is handed over; SWITCHES/held is made
when that is so. While SWITCHES/cold exists it does not get warm. SWITCHES/clock has seconds that
the clock on the wall is wrong. Sockets have small buffers: the kernel's own grow to 4 MB, more than
a tiny model says to a reader that does not read.
"""

import socket
import sys
import time
from contextlib import suppress
from pathlib import Path

from rooflight.cli.main import main
from rooflight.program.decode.pages import Values
from rooflight.serve.disaggregated.engine import DisaggregatedEngine
from rooflight.serve.engine.request import Delta
from rooflight.serve.engine.run import Engine

switches = Path(sys.argv[1])
step, read, now, warm = Engine.step, DisaggregatedEngine.read, time.time, Engine.warm
listen = socket.socket.listen


def may_step(hang: Path) -> bool:
    try:
        left = int(hang.read_text() or 0)
    except FileNotFoundError:
        return True
    if left:
        with suppress(FileNotFoundError), hang.open("r+") as file:  # never one that is gone
            file.write(f"{left - 1:<4}")
    return left > 0


def hooked(self: Engine) -> list[Delta]:
    fail = switches / "fail"
    while not may_step(switches / "hang"):
        time.sleep(0.01)
    if fail.exists():
        fail.unlink()
        step(self)
        raise RuntimeError("a device that fails, with secret details")
    return step(self)


def cold(self: Engine) -> None:
    while (switches / "cold").exists():
        time.sleep(0.01)
    warm(self)


def held_up(self: DisaggregatedEngine, lease: int, group: int) -> Values | None:
    while group and (switches / "hold").exists():
        (switches / "held").touch()
        time.sleep(0.01)
    return read(self, lease, group)


def narrow(self: socket.socket, backlog: int = 128) -> None:
    self.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)  # those it accepts have it too
    listen(self, backlog)


def wrong_time() -> float:
    clock = switches / "clock"
    return now() + (float(clock.read_text() or 0) if clock.exists() else 0)


Engine.step, DisaggregatedEngine.read, time.time, Engine.warm = hooked, held_up, wrong_time, cold
socket.socket.listen = narrow  # pyright: ignore[reportAttributeAccessIssue]
sys.exit(main(["serve", *sys.argv[2:]]))

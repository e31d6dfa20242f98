"""`rooflight serve` with a device that can be told to hang or to fail, by files.

Run as a process of its own: `python serve_worker.py SWITCHES FOLDER WORD...`. While SWITCHES/hang
exists a step waits; SWITCHES/fail makes one step raise.
"""

import sys
import time
from pathlib import Path

from rooflight.cli.main import main
from rooflight.engine import Delta, Engine

switches = Path(sys.argv[1])
step = Engine.step


def hooked(self: Engine) -> list[Delta]:
    fail = switches / "fail"
    while (switches / "hang").exists():
        time.sleep(0.01)
    if fail.exists():
        fail.unlink()
        step(self)
        raise RuntimeError("a device that fails, with secret details")
    return step(self)


Engine.step = hooked
sys.exit(main(["serve", *sys.argv[2:]]))

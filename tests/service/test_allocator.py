"""Large blocks go back to the system: in a process of its own, with the real allocator."""

import subprocess
import sys

import pytest

CHURN = """
import random, sys
from pathlib import Path
from rooflight.serve.server.allocator import return_large_blocks

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

if sys.argv[1] == "mended":
    assert return_large_blocks()
draw = random.Random(0)
held, small = [], []
before = resident()
for _ in range(400):
    held.append(bytearray(draw.randrange(200_000, 4_000_000)))
    small.append(bytearray(3000))
    if len(held) > 16:
        held.pop(draw.randrange(16))
held.clear()
print(resident() - before - sum(map(len, small)))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator")
def test_large_blocks_go_back_to_the_system() -> None:
    left = {
        how: int(subprocess.check_output([sys.executable, "-c", CHURN, how], text=True))
        for how in ("mended", "as it was")
    }
    assert left["mended"] < 2_000_000
    assert left["as it was"] > 4 * max(1, left["mended"])

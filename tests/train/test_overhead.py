"""The loop costs little over the bare step, and saving little over the loop."""

import json
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from rooflight.train.supervisor import free_port

from ..dated_figure import today, write_figure

_WORKER = Path(__file__).with_name("overhead_worker.py")


@pytest.mark.full
def test_the_loop_and_its_saves_cost_little(tmp_path: Path, tokens: Path) -> None:
    port = str(free_port("127.0.0.1"))
    done = subprocess.run(
        [sys.executable, str(_WORKER), str(tmp_path), str(tokens), "11", port],
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    bare, loop, saving = (found[name] for name in ("bare", "loop", "saving"))
    step = statistics.median(bare)
    over = statistics.median(b / a for a, b in zip(bare, loop, strict=True))
    save = statistics.median(b / a for a, b in zip(loop, saving, strict=True))
    write_figure(
        "train.md",
        "overhead",
        f"{today()}, one device of this machine, medians of {len(bare)} turns: a step takes"
        f" {step * 1e3:.0f} ms in a tight loop, {over:.3f} times as long in the trainer's, and"
        f" {save:.3f} times that with a checkpoint every 20 steps.",
    )
    assert step > 0.05
    assert over < 1.02
    assert save < 1.05

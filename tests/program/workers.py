"""Runs a worker beside this file: a process of its own, whose jax has devices of its own."""

import json
import os
import statistics
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any  # JSON

from rooflight.verify.environment import child_environment

HERE = Path(__file__).parent


@cache
def report(worker: str, *arguments: str) -> Any:
    """The JSON that a worker prints; each runs once. One for a TPU compiles without a chip."""
    environment = child_environment(os.environ) if "tpu" in worker else None
    command = [sys.executable, str(HERE / worker), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


def check_overhead(found: dict[str, Any]) -> str:
    """Ours takes at most 1.02 times as long as the same maths by hand, in a step of 50 ms or more.

    The median of pairs: what else the machine does slows both of a pair, or one of a few pairs.
    Gives the figures in words.
    """
    ratios = [ours / bare for ours, bare in zip(found["ours"], found["bare"], strict=True)]
    ours, bare = (statistics.median(found[name]) for name in ("ours", "bare"))
    words = f"{ours * 1e3:.1f} ms through the API, {bare * 1e3:.1f} ms by hand: "
    words += f"{statistics.median(ratios):.3f} times as long, the median of {len(ratios)} pairs"
    assert found["apart"] < 1e-4
    assert bare >= 0.05
    assert statistics.median(ratios) <= 1.02, words
    return words

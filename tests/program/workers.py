"""Runs a worker beside this file: a process of its own, whose jax has devices of its own."""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any  # JSON

from rooflight.compile.aot.environment import child_environment

HERE = Path(__file__).parent


@cache
def report(worker: str, *arguments: str) -> Any:
    """The JSON that a worker prints; each runs once. One for a TPU compiles without a chip."""
    environment = child_environment(os.environ) if "tpu" in worker else None
    command = [sys.executable, str(HERE / worker), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)

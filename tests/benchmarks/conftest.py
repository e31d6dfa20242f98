"""Lets the tests here import the benchmarks, which are beside the package and not in it."""

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any  # JSON

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))


@cache
def run_benchmark(name: str, *flags: str) -> Any:
    command = [sys.executable, "-m", "benchmarks", name, "--json", *flags]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout[done.stdout.index("{") :])  # libraries talk on stdout, too


class Measured:
    """A record of a benchmark that runs in a process of its own, once."""

    def __init__(self, name: str, *flags: str) -> None:
        self.record: dict[str, Any] = run_benchmark(name, *flags)
        self.rows: dict[str, Any] = {row["case"]: row for row in self.record["rows"]}

    def __getitem__(self, case: str) -> float:
        return self.rows[case]["value"]

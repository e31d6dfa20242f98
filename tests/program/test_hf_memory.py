"""A checkpoint is never in the memory of the host as a whole, going in or coming out."""

import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

pytest.importorskip("jax")
pytest.importorskip("safetensors")

WORKER = Path(__file__).with_name("hf_memory_worker.py")


@pytest.fixture(scope="module")
def held() -> dict[str, int]:
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("this system does not tell the peak of a part of a run")
    with TemporaryDirectory() as folder:
        done = subprocess.run([sys.executable, str(WORKER), folder], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


def test_an_import_holds_a_few_blocks_beside_what_the_devices_keep(held: dict[str, int]) -> None:
    assert held["files"] >= 8
    beside = held["import_growth"] - held["model"]
    assert beside < 5 * held["block"] < held["model"] / 3


def test_an_export_holds_about_one_file(held: dict[str, int]) -> None:
    assert held["export_growth"] < 2.5 * held["file"] < held["model"] / 2

"""Schedules inside one jit give the loss and gradients of the program without stages."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jax")

WORKER = Path(__file__).with_name("pipeline_program_worker.py")
TOLERANCE = 1e-5  # of the largest element of each gradient, fp32


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    done = subprocess.run([sys.executable, str(WORKER)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


def test_loss_and_gradients_equal_the_program_without_a_pipeline(found: dict[str, Any]) -> None:
    errors: dict[str, float] = found["errors"]
    assert not {name: error for name, error in errors.items() if not error < TOLERANCE}


def test_every_schedule_runs_on_two_and_four_stages(found: dict[str, Any]) -> None:
    """And a stage may itself be split: by types, or by hand."""
    names = " ".join(found["errors"])
    for schedule in ("gpipe", "1f1b", "interleaved", "zb-h1"):
        assert f"{schedule} S=2" in names and f"{schedule} S=4" in names
    assert all(inside in names for inside in ("explicit", "ring"))


def test_one_forward_one_backward_needs_half_the_memory_of_gpipe_or_less(
    found: dict[str, Any],
) -> None:
    memory: dict[str, int] = found["memory"]
    assert memory["gpipe 32"] >= 2 * memory["1f1b 32"]


def test_memory_grows_with_microbatches_only_under_gpipe(found: dict[str, Any]) -> None:
    memory: dict[str, int] = found["memory"]
    x_bytes = 8 * 16 * 32 * 4
    assert memory["gpipe 32"] - memory["gpipe 16"] >= 16 * x_bytes
    assert memory["1f1b 32"] - memory["1f1b 16"] < x_bytes


def test_a_stage_that_changes_its_type_is_refused(found: dict[str, Any]) -> None:
    assert "takes ((4,), 'float32') and returns ((4,), 'bfloat16')" in found["refusal"]

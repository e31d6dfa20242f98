"""Routed experts on one and on eight devices against every expert on every token."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jax")

from workers import report

FOLDER = Path(__file__).parent
TOLERANCE = 1e-5  # of the largest element of a result or gradient, fp32


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return report("moe_worker.py")


def test_values_and_gradients_equal_every_expert_on_every_token(found: dict[str, Any]) -> None:
    """With experts over one axis and F over another, balanced and with one favourite expert."""
    errors: dict[str, float] = found["errors"]
    assert len(errors) == 9
    assert not {name: error for name, error in errors.items() if not error < TOLERANCE}


def test_choices_over_capacity_are_dropped_and_counted(found: dict[str, Any]) -> None:
    dropped = found["dropped"]
    assert dropped["found"] == dropped["wanted"] > 0
    assert dropped["error"] < TOLERANCE


def test_rows_sent_by_the_emulation_are_those_of_a_ragged_exchange(found: dict[str, Any]) -> None:
    assert found["exchanged"]


def test_explicit_and_auto_sharded_layers_give_the_same_on_eight_devices(
    found: dict[str, Any],
) -> None:
    assert found["naive"]["error"] < TOLERANCE
    assert found["naive"]["dropped"] == [0, 0]


def test_rows_held_by_a_device_fall_with_devices_only_if_exchanged(found: dict[str, Any]) -> None:
    """4096 tokens on 2, 4, 8 devices: S of the auto-sharded layer, S/N of the explicit one."""
    rows = found["naive"]["rows"]["same tokens"]
    two, four, eight = rows["explicit"]
    assert 1.8 <= two / four <= 2.2 and 3.5 <= two / eight <= 4.5
    assert rows["auto"][2] > 0.95 * rows["auto"][1] > 2 * 4096, "all choices, twice for capacity"


def test_rows_held_by_a_device_grow_with_all_tokens_only_if_left_to_the_compiler(
    found: dict[str, Any],
) -> None:
    """512 tokens per device."""
    rows = found["naive"]["rows"]["same tokens per device"]
    assert max(rows["explicit"]) < 1.1 * min(rows["explicit"])
    assert rows["auto"][2] > 1.9 * rows["auto"][1] and rows["auto"][2] > 2.5 * rows["auto"][0]


@pytest.mark.full
def test_the_tpu_compiler_takes_the_ragged_exchange_forward_and_backward() -> None:
    """v5e:2x4, no chip attached: two exchanges a chunk, and their transposes."""
    counts = report("moe_tpu_worker.py", "ragged")
    assert counts["forward"] == {"ragged-all-to-all": 4, "all-gather of rows": 0}
    assert counts["gradients"]["ragged-all-to-all"] >= 8


@pytest.mark.full
def test_matmuls_of_one_chunk_hide_the_exchange_of_another_on_tpu() -> None:
    """Of 2 x 2 exchanges, all but the first there and the last back have matmuls inside."""
    assert report("moe_tpu_worker.py", "overlap") == {"exchanges": 4, "hidden": 2}


@pytest.mark.full
def test_the_table_of_the_page_can_be_made_again() -> None:
    """Ratios of times differ from day to day; that the layers agree and what they hold do not."""
    done = subprocess.run(
        [sys.executable, str(FOLDER / "moe_table_worker.py")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-4000:]
    print(done.stdout)
    page = (FOLDER.parents[1] / "docs" / "moe.md").read_text()
    memory = [line for line in done.stdout.splitlines() if "tokens" in line and "|" in line]
    assert memory and all(line in page for line in memory)

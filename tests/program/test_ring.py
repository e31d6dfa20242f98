"""Ring and all-to-all attention against plain attention of the whole sequence."""

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jax")

WORKER = Path(__file__).with_name("ring_worker.py")
CLOSE = 2e-6  # of the largest entry, in fp32
RINGS = ["zigzag", "zigzag, sinks and softcap", "blocks and window"]
ULYSSES = ["ulysses", "ulysses, few kv heads"]


@cache
def report() -> Any:  # JSON
    done = subprocess.run([sys.executable, str(WORKER)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("case", RINGS + ULYSSES)
def test_split_sequences_give_the_values_and_gradients_of_whole_ones(case: str) -> None:
    assert report()["errors"][case] < CLOSE


@pytest.mark.parametrize("case", RINGS)
def test_a_ring_only_permutes_keys_and_values(case: str) -> None:
    assert report()["ops"][case] == {"ppermute": 2, "all_to_all": 0, "all_gather": 0}


@pytest.mark.parametrize("case", ULYSSES)
def test_ulysses_only_exchanges_heads_for_positions(case: str) -> None:
    assert report()["ops"][case] == {"ppermute": 0, "all_to_all": 4, "all_gather": 0}


def test_zigzag_gives_every_device_the_same_work_in_every_round() -> None:
    first, *others = report()["tiles"]["zigzag"]
    assert set(first) == {3}
    assert {count for turn in others for count in turn} == {2}


def test_blocks_leave_early_devices_idle() -> None:
    last = report()["tiles"]["blocks"][-1]
    assert last == [0, 0, 0, 4]


def test_the_order_of_positions_can_be_undone() -> None:
    assert report()["undone"]

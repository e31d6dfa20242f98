"""Prompts of one engine, texts of another: whatever is lost or late, nobody's text changes."""

from typing import Any  # JSON

import pytest

pytest.importorskip("jax")

from engine_process import report

WORKER = "engine_disaggregated_worker.py"


def check(found: Any, count: int) -> None:
    seen = found["seen"]
    assert {"stop", "length", "cancelled"} <= set(seen)
    assert seen["stale reads"] > count / 4 and seen["late inserts"] > count / 8
    assert found["inserted"] > count and found["lost"] > count / 4
    assert found["preemptions"] > 0
    assert found["compilations"] == 0
    assert found["away"] == [True, False]  # a prompt that is new, and one that is cached here


def test_texts_do_not_depend_on_who_prefills_them() -> None:
    check(report(WORKER, "16", "0", "one"), 16)


@pytest.mark.full
@pytest.mark.parametrize("layout", ["tp2", "tp2_spread"])
def test_blocks_of_several_devices_are_handed_over_whole(layout: str) -> None:
    check(report(WORKER, "25", "0", layout), 25)


@pytest.mark.full
def test_texts_do_not_depend_on_any_of_500_ways_to_lose_them() -> None:
    check(report(WORKER, "500", "1000", "one"), 500)


def test_what_a_carrier_brings_is_what_was_sent() -> None:
    """By bytes and by jax; what is never pulled is taken back, and a wrong size is refused."""
    found = report("engine_transfer_worker.py")
    for kind in ("bytes", "jax"):
        assert found[kind]["same"], kind
        assert found[kind]["ready"], kind
    assert found["wrong_size"] and found["wrong_count"]
    assert found["never_offered"] == "not ready"
    assert found["dead_peer"] == "lost"
    assert found["taken_back"]

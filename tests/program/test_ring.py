"""Ring and all-to-all attention against plain attention of the whole sequence."""

import pytest

pytest.importorskip("jax")

from workers import report

CLOSE = 2e-6  # of the largest entry, in fp32
RINGS = ["zigzag", "zigzag, sinks and softcap", "blocks and window"]
ULYSSES = ["ulysses", "ulysses, few kv heads"]


@pytest.mark.parametrize("case", RINGS + ULYSSES)
def test_split_sequences_give_the_values_and_gradients_of_whole_ones(case: str) -> None:
    assert report("ring_worker.py")["errors"][case] < CLOSE


@pytest.mark.parametrize("case", RINGS)
def test_a_ring_only_permutes_keys_and_values(case: str) -> None:
    assert report("ring_worker.py")["ops"][case] == {
        "ppermute": 2,
        "all_to_all": 0,
        "all_gather": 0,
    }


@pytest.mark.parametrize("case", ULYSSES)
def test_ulysses_only_exchanges_heads_for_positions(case: str) -> None:
    assert report("ring_worker.py")["ops"][case] == {
        "ppermute": 0,
        "all_to_all": 4,
        "all_gather": 0,
    }


def test_zigzag_gives_every_device_the_same_work_in_every_round() -> None:
    first, *others = report("ring_worker.py")["tiles"]["zigzag"]
    assert set(first) == {3}
    assert {count for turn in others for count in turn} == {2}


def test_blocks_leave_early_devices_idle() -> None:
    last = report("ring_worker.py")["tiles"]["blocks"][-1]
    assert last == [0, 0, 0, 4]


def test_the_order_of_positions_can_be_undone() -> None:
    assert report("ring_worker.py")["undone"]


def test_a_ring_of_odd_parts_is_refused_with_a_way_out() -> None:
    text = report("ring_worker.py")["refused"]["ring"]
    assert "3 queries and 3 keys" in text
    assert "pad the sequence" in text


@pytest.mark.parametrize("heads", ["6 x 2", "2 x 3"])
def test_heads_that_cannot_be_exchanged_are_refused_with_a_way_out(heads: str) -> None:
    """Over four devices: kv heads that neither divide nor are a part of them, odd groups."""
    text = report("ring_worker.py")["refused"][heads]
    kv_heads, groups = map(int, heads.split(" x "))
    assert f"{kv_heads} kv heads x {groups} groups over 4 devices" in text
    assert f"divides {kv_heads}, or is a multiple of it that divides {kv_heads * groups}" in text

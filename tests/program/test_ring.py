"""Ring attention and gathered keys against plain attention of the whole sequence."""

import pytest

pytest.importorskip("jax")

from workers import report

CLOSE = 2e-6  # of the largest entry, in fp32
RINGS = ["zigzag", "zigzag, sinks and softcap", "blocks and window"]
GATHERED = ["gathered", "gathered, both ways"]


@pytest.mark.parametrize("case", RINGS + GATHERED)
def test_split_sequences_give_the_values_and_gradients_of_whole_ones(case: str) -> None:
    assert report("ring_worker.py")["errors"][case] < CLOSE


@pytest.mark.parametrize("form", ["ring", pytest.param("gathered", marks=pytest.mark.full)])
def test_the_kernel_for_tpus_gives_the_same_values_and_gradients(form: str) -> None:
    error, ops = report("ring_worker.py", form)[form]
    assert error < CLOSE
    assert ops["ppermute" if form == "ring" else "all_gather"] == 2


@pytest.mark.parametrize("case", RINGS)
def test_a_ring_only_permutes_keys_and_values(case: str) -> None:
    assert report("ring_worker.py")["ops"][case] == {
        "ppermute": 2,
        "all_to_all": 0,
        "all_gather": 0,
    }


@pytest.mark.parametrize("case", GATHERED)
def test_gathered_keys_and_values_are_gathered_once(case: str) -> None:
    assert report("ring_worker.py")["ops"][case] == {
        "ppermute": 0,
        "all_to_all": 0,
        "all_gather": 2,
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

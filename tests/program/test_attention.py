"""Attention against plain softmax attention: values, gradients, memory, and the TPU kernel."""

import pytest

pytest.importorskip("jax")

from workers import report

CLOSE = 2e-6  # of the largest entry, in fp32


@pytest.mark.parametrize(
    "case",
    [
        "causal",
        "window both ways",
        "sinks, window and softcap",
        "full, of some lengths, in one tile",
        "rows at their own positions",
    ],
)
def test_tiles_give_the_values_and_gradients_of_plain_attention(case: str) -> None:
    assert report("attention_worker.py")["errors"][case] < CLOSE


@pytest.mark.parametrize("case", ["batch and heads", "groups, so k and v are copies"])
def test_attention_is_the_same_on_an_explicit_mesh(case: str) -> None:
    assert report("attention_worker.py")["errors"][case] < CLOSE


def test_queries_may_be_split_over_positions_when_told_where_they_begin() -> None:
    assert report("attention_worker.py")["query shards"] < CLOSE


def test_the_kernel_for_tpus_gives_the_same_values() -> None:
    assert report("attention_worker.py")["errors"]["splash"] < CLOSE


@pytest.mark.parametrize("kernel", ["chunked", "splash"])
def test_a_query_that_sees_no_key_gives_zero(kernel: str) -> None:
    """With no keys at all, and with the last key further away than the window."""
    found = report("attention_worker.py")["unseen"][kernel]
    assert found["unseen"] == [128, 17]
    assert found["largest"] == 0
    assert found["seen"] > 0.1


def test_states_merge_in_any_order_and_no_keys_change_nothing() -> None:
    assert report("attention_worker.py")["merge"] < CLOSE


def test_memory_of_the_gradient_is_linear_in_the_length() -> None:
    """Four times the length, at most four times the bytes; the matrix of scores would take 16."""
    short, long = report("attention_worker.py")["bytes"]
    assert short < long <= 4 * short


def test_split_positions_are_refused_with_a_way_out() -> None:
    text = report("attention_worker.py")["refused"]["split positions"]
    assert "float32[4,16@a,2,2,8]" in text
    assert "ring_attend" in text


def test_the_kernel_refuses_positions_that_are_known_too_late() -> None:
    assert 'kernel="chunked"' in report("attention_worker.py")["refused"]["late starts"]


@pytest.mark.full
def test_attention_compiles_for_a_tpu_with_the_kernel_that_ships_with_jax() -> None:
    """Forward, dq and dkv are a kernel each, in maps too; a ring has its last round apart."""
    pytest.importorskip("libtpu")
    calls = report("attention_tpu_worker.py")
    assert calls.pop("short ring") == 0  # of pieces of less than 128 positions
    assert calls == {"plain": 3, "mapped": 3, "gathered": 3, "ring": 6}

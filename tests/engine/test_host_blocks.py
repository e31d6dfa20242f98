"""Evicted blocks in host memory: they come back as they were, and nobody's text changes."""

import pytest

pytest.importorskip("jax")

from engine_process import report


def check(count: int, seed: int, host_blocks: int) -> None:
    found = report("engine_host_worker.py", str(count), str(seed), str(host_blocks))
    assert {"stop", "length", "cancelled"} <= set(found["ends"])
    assert found["restored"] > count
    assert 0 < found["most"] <= host_blocks
    assert found["hits"] > 4 * found["restored"]  # tokens of blocks, from the pool as well
    assert found["preemptions"] > 0
    assert found["compilations"] == 0


def test_texts_do_not_depend_on_what_the_host_keeps() -> None:
    check(25, 0, 30)


@pytest.mark.full
@pytest.mark.parametrize("host_blocks", [3, 200])
def test_texts_do_not_depend_on_how_much_the_host_keeps(host_blocks: int) -> None:
    check(200, 1000, host_blocks)

"""What docs/moe.md says of routed experts on v5e:2x4, asked of the compiler once more."""

import importlib.util

import pytest
from moe_shapes import CHUNKS, SHAPES, compiled, in_chunks

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(
        any(importlib.util.find_spec(name) is None for name in ("jax", "libtpu")),
        reason="libtpu, the compiler that is asked, is not installed",
    ),
]


def test_left_to_the_compiler_narrow_experts_take_three_times_as_long() -> None:
    auto, explicit = (compiled(SHAPES["narrow"], is_explicit=way) for way in (False, True))
    assert explicit.kinds == "2 all-to-all"
    assert "all-to-all" not in auto.kinds
    assert 3 < auto.time.seconds / explicit.time.seconds < 5
    assert auto.moved_bytes > 8 * explicit.moved_bytes
    assert auto.temporary_bytes > 100 * explicit.temporary_bytes


@pytest.mark.parametrize(("hidden", "hides"), [(2048, False), (4096, True)])
def test_exchanges_hide_but_for_the_first_and_the_last_where_the_condition_says_so(
    hidden: int, hides: bool
) -> None:
    found = in_chunks(hidden)
    assert found.hides == hides
    assert found.num_exchanges == 2 * CHUNKS
    assert (found.num_inside == found.num_exchanges - 2) == hides
    assert (found.exposed_s < 2 * found.exchange_s) == hides

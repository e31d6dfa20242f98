"""Shapes in whole tiles."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rooflight.costs.roofline import padded_shape
from rooflight.errors import UsageError

SIZES = st.integers(1, 300)


@given(st.lists(st.tuples(SIZES, SIZES), min_size=1, max_size=3), st.lists(SIZES, max_size=2))
def test_padding_gives_the_smallest_whole_tiles_and_leaves_outer_dims_alone(
    pairs: list[tuple[int, int]], outer: list[int]
) -> None:
    inner, tile = zip(*pairs, strict=True)
    padded = padded_shape((*outer, *inner), tile)
    assert list(padded[: len(outer)]) == outer
    for size, step, held in zip(inner, tile, padded[len(outer) :], strict=True):
        assert held % step == 0 and 0 <= held - size < step


@pytest.mark.parametrize("tile", [(2, 2, 2), (0, 2)])
def test_a_tile_that_cannot_hold_the_shape_is_refused(tile: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match=r"\(3, 5\)"):
        padded_shape((3, 5), tile)

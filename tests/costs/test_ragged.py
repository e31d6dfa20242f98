"""The part of an all-to-all that tokens with few experts need, counted over every choice."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rooflight.costs.network import ragged_share, ragged_share_bound


@pytest.mark.parametrize(("choices", "shards"), [(1, 4), (2, 2), (3, 4), (4, 3), (5, 5)])
def test_the_share_is_the_mean_over_all_choices(choices: int, shards: int) -> None:
    draws = [len(set(draw)) for draw in product(range(shards), repeat=choices)]
    assert ragged_share(choices, shards) == pytest.approx(sum(draws) / len(draws) / shards)


@given(st.integers(1, 64), st.integers(1, 256))
def test_the_share_is_at_most_its_bound_and_grows_with_the_choices(k: int, n: int) -> None:
    assert 0 < ragged_share(k, n) <= ragged_share_bound(k, n) * (1 + 1e-12) <= 1 + 1e-12
    assert ragged_share(k, n) <= ragged_share(k + 1, n)

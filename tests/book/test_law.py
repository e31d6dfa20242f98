"""Laws read off answers at a few sizes, and the crossings that follow from them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rooflight.book.layer import Quantities, Sizes, fit, root
from rooflight.errors import ModelError

POWERS = st.sampled_from([-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0])
FACTORS = st.floats(1e-3, 1e3)


@given(POWERS, POWERS, FACTORS, FACTORS, FACTORS)
def test_a_product_of_powers_is_continued_to_any_size(
    p: float, q: float, scale: float, a: float, b: float
) -> None:
    def ask(sizes: Sizes) -> Quantities:
        return {"it": scale * sizes["a"] ** p * sizes["b"] ** q}

    law = fit(ask, {"a": 4, "b": 16})["it"]
    assert math.isclose(law.at({"a": a, "b": b}), scale * a**p * b**q, rel_tol=1e-9)


def test_a_quantity_that_follows_no_powers_is_refused() -> None:
    with pytest.raises(ModelError, match="bytes does not go with powers of a"):
        fit(lambda sizes: {"bytes": 1.0 + sizes["a"]}, {"a": 4})


@given(FACTORS, st.sampled_from([-1, 1]))
def test_a_crossing_is_found_from_either_side(where: float, sign: int) -> None:
    found = root(lambda x: sign * (x - where), 1e-6, 1e6)
    assert math.isclose(found, where, rel_tol=1e-9)


def test_no_crossing_is_an_error() -> None:
    with pytest.raises(ModelError, match="no crossing between 1 and 10"):
        root(lambda x: x, 1, 10)

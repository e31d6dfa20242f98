"""Counts and lengths as text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rooflight.errors import ParseError
from rooflight.units import parse_count, parse_length


@given(st.integers(0, 10**12))
def test_a_plain_number_is_itself(number: int) -> None:
    assert parse_count(str(number)) == parse_length(str(number)) == number


@given(st.integers(0, 10**6), st.sampled_from(["k", "K", "Ki"]))
def test_a_thousand_tokens_of_a_sequence_are_1024(number: int, prefix: str) -> None:
    assert parse_length(f"{number}{prefix}") == 1024 * number


@given(st.integers(0, 10**6))
def test_a_thousand_of_anything_else_are_a_thousand(number: int) -> None:
    assert parse_count(f"{number}k") == 1000 * number
    assert parse_count(f"{number}Mi") == parse_length(f"{number}M") == 2**20 * number


@pytest.mark.parametrize("text", ["", "8kk", "k", "8q", "-8k", "1.3k", "8T"])
def test_what_is_no_length_ends_in_a_hint(text: str) -> None:
    with pytest.raises(ParseError) as caught:
        parse_length(text, what="--seq")
    assert "--seq" in str(caught.value) and caught.value.hint

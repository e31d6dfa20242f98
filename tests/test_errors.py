"""Names that nobody knows: what was meant is suggested only where it is near."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rooflight.errors import UnknownNameError, near_names
from rooflight.hardware.catalog import chip_names
from rooflight.models.presets import model_names

KNOWN = (*chip_names(), *model_names())
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"


@st.composite
def slips(draw: st.DrawFn) -> tuple[str, str]:
    """A known name of three letters or more, and the same with one slip."""
    name = draw(st.sampled_from([n for n in KNOWN if len(n) > 2]))
    at = draw(st.integers(0, len(name) - 1))
    letter = draw(st.sampled_from(LETTERS))
    wrong = draw(
        st.sampled_from(
            [
                name[:at] + name[at + 1 :],
                name[:at] + letter + name[at:],
                name[:at] + letter + name[at + 1 :],
                name[:at] + name[at : at + 2][::-1] + name[at + 2 :],
            ]
        )
    )
    return name, wrong


@given(slips())
def test_one_slip_is_forgiven(pair: tuple[str, str]) -> None:
    name, wrong = pair
    assert near_names(wrong, [name]) == [name]
    assert near_names(wrong.upper(), [name]) == [name]


@given(st.text(LETTERS, max_size=12))
def test_what_is_suggested_has_most_of_the_letters_or_begins_so(word: str) -> None:
    for name in near_names(word, KNOWN):
        kept = len(word) - max(len(word), len(name)) // 4 - 1
        assert name.startswith(word) or sum(c in name for c in word) >= kept


@pytest.mark.parametrize("word", ["foo", "x64", "zzz", "q", "v9", "h", "", "a10000", "mixture"])
def test_a_word_that_is_far_from_all_gets_the_list(word: str) -> None:
    hint = UnknownNameError("chip", word, ["h100", "h200", "v5e", "v5p", "mixtral-8x7b"]).hint
    assert hint == "choose one of h100, h200, mixtral-8x7b, v5e, v5p"


def test_only_the_nearest_are_suggested() -> None:
    assert near_names("h100x", ["v100", "h100", "h800"]) == ["h100"]
    assert near_names("v5q", ["v5e", "v5p", "v6e"]) == ["v5e", "v5p"]


def test_a_long_word_costs_nothing_where_no_name_is_as_long() -> None:
    assert near_names("x" * 10**6, KNOWN) == []

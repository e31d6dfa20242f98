"""The notation: text and records are the same thing, and nonsense is refused with a reason."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rooflight.algebra.notation import Tensor, parse_contraction, parse_tensor
from rooflight.dtypes import DTYPES
from rooflight.errors import ParseError, RooflightError, ShardingError

NAMES = st.from_regex(r"[A-Za-z][A-Za-z0-9]{0,3}", fullmatch=True)
AXIS_NAMES = ("X", "Y", "Z", "W2", "fsdp", "tp", "dcn_0")


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    dims = draw(st.lists(NAMES, unique=True, max_size=4))
    axes = draw(st.permutations(AXIS_NAMES))
    held: list[tuple[str, ...]] = []
    for _ in dims:
        count = draw(st.integers(0, min(3, len(axes))))
        held.append(tuple(axes[:count]))
        axes = axes[count:]
    pending = tuple(sorted(axes[: draw(st.integers(0, min(2, len(axes))))]))
    return Tensor(draw(NAMES), tuple(dims), tuple(held), pending)


@given(tensors())
def test_every_tensor_survives_printing_and_parsing(tensor: Tensor) -> None:
    assert parse_tensor(str(tensor)) == tensor


@given(tensors())
def test_spaces_do_not_matter(tensor: Tensor) -> None:
    spaced = str(tensor).replace("[", " [ ").replace(",", " , ").replace("]", " ] ")
    assert parse_tensor(spaced) == tensor


def test_a_contraction_survives_printing_and_parsing() -> None:
    text = "In[B_X,D_Y] * W_in[D_X,F_Y] -> Tmp[B_X,F_Y]{U_Z}"
    assert str(parse_contraction(text)) == text


def test_the_star_may_name_the_summed_dims() -> None:
    named = parse_contraction("A[I,J] *_J B[J,K] -> C[I,K]")
    assert named == parse_contraction("A[I,J]*B[J,K]->C[I,K]")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("A[I_X,J_X]", "splits both I and J over mesh axis X"),
        ("A[I_XX]", "names mesh axis X twice on one dim"),
        ("A[I_X]{U_X}", "both splits I over X and is unreduced over it"),
        ("A[I,I]", "names dim I 2 times"),
    ],
)
def test_a_forbidden_sharding_is_refused_with_its_reason(text: str, reason: str) -> None:
    with pytest.raises(ShardingError, match=reason) as caught:
        parse_tensor(text)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("A[I,J] * B[J,K] -> C[I,L]", "dim L, which no operand has"),
        ("A[I,J] * B[I,K] -> C[I,K]", "summed inside one operand"),
        ("A[I,J] *_I B[J,K] -> C[I,K]", "the result keeps it"),
        ("A[I,J] *_Q B[J,K] -> C[I,K]", "names a dim that no operand has"),
    ],
)
def test_a_contraction_that_is_none_is_refused_with_its_reason(text: str, reason: str) -> None:
    with pytest.raises(ShardingError, match=reason):
        parse_contraction(text)


@pytest.mark.parametrize("text", ["", "A", "A[I J]", "A[I_]", "A[I]{U}", "A[I_{}]", "A]I["])
def test_text_outside_the_grammar_is_a_parse_error_with_a_hint(text: str) -> None:
    with pytest.raises(ParseError) as caught:
        parse_tensor(text)
    assert caught.value.hint


PIECES = st.sampled_from(
    ("A", "B", "C", "[", "]", "{", "}", "_", ",", "*", "->", "I", "J", "K", "X", "Y", "U_", " ")
) | st.sampled_from(
    ("*_J", "I_X", "{U_X}", "A[I,J]", "B[J,K]", "-> C[I,K]", "\n", "\u00b7", "1", "'", "\u00e9")
)


@settings(max_examples=4000)
@given(st.one_of(st.lists(PIECES, max_size=14).map("".join), st.text(max_size=40)))
def test_no_text_makes_the_parser_fall_over(text: str) -> None:
    for parse in (parse_tensor, parse_contraction):
        try:
            parsed = parse(text)
        except RooflightError as error:
            assert str(error)
        else:
            assert parse(str(parsed)) == parsed


def test_dtypes_count_bits_and_block_scales_exactly() -> None:
    assert DTYPES["int4"].nbytes(7) == 4
    assert DTYPES["mxfp4"].nbytes(33) == 17 + 2
    assert DTYPES["nvfp4"].nbytes(16) == 8 + 1
    assert DTYPES["mxfp8"].bits_per_element == 8.25

"""Tables: golden text, and columns that line up whatever is in them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rooflight.ui.text.table import table

CELL = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=12)


def test_numbers_go_right_and_words_left() -> None:
    rows = [["v5e", "197 TFLOP/s", "$1.2", "-"], ["tpu7x", "2,307 TFLOP/s", "", "95%"]]
    assert table(["chip", "bf16", "price", "reached"], rows) == (
        "chip            bf16  price  reached\n"
        "-----  -------------  -----  -------\n"
        "v5e      197 TFLOP/s   $1.2        -\n"
        "tpu7x  2,307 TFLOP/s             95%"
    )


def test_a_given_alignment_wins() -> None:
    assert table(["a", "b"], [["1", "word"]], align="lr") == "a     b\n-  ----\n1  word"


def test_a_table_without_rows_is_its_header() -> None:
    assert table(["chip", "title"], []) == "chip  title\n----  -----"


def test_a_row_of_the_wrong_length_is_refused() -> None:
    with pytest.raises(ValueError, match="shorter"):
        table(["a", "b"], [["1"]])


@given(st.lists(st.tuples(CELL, CELL, CELL), min_size=1))
def test_every_cell_stays_inside_its_column(rows: list[tuple[str, str, str]]) -> None:
    _, rule, *lines = table(["one", "two", "three"], rows).split("\n")
    widths = [len(dashes) for dashes in rule.split("  ")]
    starts = [sum(widths[:i]) + 2 * i for i in range(3)]
    for row, line in zip(rows, lines, strict=True):
        spans = zip(starts, widths, strict=True)
        assert [line[start : start + width].strip() for start, width in spans] == list(row)

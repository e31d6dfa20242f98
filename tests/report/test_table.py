"""Tables: golden text, and columns that line up whatever is in them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rooflight.ui.answer import Answer, Column, Table, show_bytes
from rooflight.ui.html.answer import table_grid
from rooflight.ui.text.answer import answer_text, table_text
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


SIZES = Table(
    "sizes",
    "What there is, largest first",
    (Column("name", "what"), Column("bytes", "bytes", show_bytes, unknown="unknown")),
    (("weights", 3000), ("cache", None), ("rest", 5)),
    foot="counted, not measured",
)
ODD = Table(
    "findings",
    "Findings",
    (
        *(Column("kind", "finding"), Column("words", "what", is_wide=True)),
        *(Column("bytes", "memory", show_bytes), Column("where", "where")),
        Column("fix", "fix", is_wide=True),
    ),
    (("replicated", "w is whole", 5, "a.py:3", "split it"), ("warning", "odd", None, None, "")),
    is_list=True,
)


def test_rows_left_out_and_what_figures_rest_on_are_said_in_every_medium() -> None:
    short = SIZES.first(2)
    assert table_text(short).split("\n")[2:] == [
        "weights     3 kB",
        "cache    unknown",
        "(1 more rows: -v)",
        "counted, not measured",
    ]
    page = table_grid(short)
    assert "What there is, largest first (1 smaller ones left out)" in page
    assert "counted, not measured" in page and "unknown" in page and "rest" not in page
    assert SIZES.first(None) == SIZES.first(3) == SIZES and "more rows" not in table_text(SIZES)


def test_sentences_are_items_in_a_terminal_and_cells_on_a_page() -> None:
    assert table_text(ODD) == "- w is whole [5 B, a.py:3]\n  fix: split it\n- odd"
    assert table_text(ODD.first(1)).endswith("\n(1 more findings: -v)")
    assert ">replicated</th>" in table_grid(ODD)


def test_a_terminal_leaves_captions_to_pages() -> None:
    text = answer_text(Answer(("So it is.",), tables=(ODD, SIZES), notes=("a note",)))
    assert text == f"So it is.\n\n{table_text(ODD)}\na note\n\n{table_text(SIZES)}"

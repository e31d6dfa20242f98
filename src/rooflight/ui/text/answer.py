"""An `Answer` in a terminal: sentences, the tables that are not folded, notes."""

from rooflight.ui.answer import Answer, Table
from rooflight.ui.text.table import table


def answer_text(answer: Answer) -> str:
    """The sentences, the first table and what to know of it; then the other tables."""
    first, *others = [t for t in answer.tables if not t.is_folded] or [None]
    return "\n".join(
        [
            *answer.sentences,
            *(["", _lines(first)] if first else []),
            *answer.notes,
            *(line for one in others if one for line in ("", one.caption, _lines(one))),
        ]
    )


def _lines(shown: Table) -> str:
    rows = [
        [column.text(value) for column, value in zip(shown.columns, row, strict=True)]
        for row in shown.rows
    ]
    align = "".join("r" if shown.is_number(i) else "l" for i in range(len(shown.columns)))
    return table([c.label for c in shown.columns], rows, align=align, keep=shown.keep)

"""An `Answer` in a terminal: sentences, the tables that are not folded, notes."""

from rooflight.ui.answer import Answer, Table
from rooflight.ui.text.table import table


def answer_text(answer: Answer) -> str:
    """The sentences, the first table and what to know of it; then the other tables."""
    first, *others = [t for t in answer.tables if not t.is_folded] or [None]
    return "\n".join(
        [
            *answer.sentences,
            *(["", table_text(first)] if first else []),
            *answer.notes,
            *(line for one in others if one for line in ("", table_text(one))),
        ]
    )


def table_text(shown: Table) -> str:
    """One table, without its caption; how much of it is not shown, and what it rests on."""
    more = f"({shown.left:,} more {shown.key if shown.is_list else 'rows'}: -v)"
    rows = _items(shown) if shown.is_list else _columns(shown)
    return "\n".join([rows, *([more] if shown.left else []), *filter(None, [shown.foot])])


def _items(shown: Table) -> str:
    """The first sentence of each row with its short cells, then its other sentences by name."""
    lines: list[str] = []
    wide = [i for i, column in enumerate(shown.columns) if column.is_wide]
    for row in shown.rows:
        cells = [column.text(value) for column, value in zip(shown.columns, row, strict=True)]
        short = [c for i, c in enumerate(cells) if i and i not in wide and row[i] is not None]
        lines.append(f"- {cells[wide[0]]}" + (f" [{', '.join(short)}]" if short else ""))
        lines += [f"  {shown.columns[i].label}: {cells[i]}" for i in wide[1:] if cells[i]]
    return "\n".join(lines)


def _columns(shown: Table) -> str:
    rows = [
        [column.text(value) for column, value in zip(shown.columns, row, strict=True)]
        for row in shown.rows
    ]
    align = "".join("r" if shown.is_number(i) else "l" for i in range(len(shown.columns)))
    return table([c.label for c in shown.columns], rows, align=align, keep=shown.keep)

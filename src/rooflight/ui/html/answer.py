"""An `Answer` as parts of a page that stands alone."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape

from rooflight.ui.answer import Answer, Fact, Table
from rooflight.ui.html.page import Grid, Section, figure, folded, grid, page, paragraph


def lead(answer: Answer) -> Iterator[str]:
    """The sentences and facts of an answer, which come before everything else."""
    for number, words in enumerate(answer.sentences):
        yield paragraph(words, style="note" if number else "answer")
    yield from facts_markup(answer.facts)


def facts_markup(facts: Sequence[Fact]) -> list[str]:
    """A box for each, if there are any."""
    return [f'<dl class="facts">{"".join(map(_card, facts))}</dl>'] if facts else []


def section(key: str, heading: str, answer: Answer) -> Section:
    """Sentences, tables, notes and pictures under a heading; a folded table stays so."""
    first = [t for t in answer.tables if t.is_first]
    rest = [t for t in answer.tables if not t.is_first]
    body = [
        *(paragraph(words) for words in answer.sentences),
        *map(_table, first),
        *(paragraph(words, style="note") for words in answer.notes if words),
        *(figure(p.svg, caption=p.caption, least=p.least or 700) for p in answer.pictures),
        *map(_table, rest),
    ]
    return Section(key, heading, tuple(body))


def answer_page(title: str, kicker: str, head: Answer, parts: Mapping[str, Answer]) -> str:
    """A whole page: the sentences and facts of one answer, then a section for each other one."""
    sections = [section(name.lower().replace(" ", "-"), name, one) for name, one in parts.items()]
    return page(title=title, kicker=kicker, lead=tuple(lead(head)), sections=sections)


def _card(fact: Fact) -> str:
    note = f'<dd class="small">{escape(fact.note)}</dd>' if fact.note else ""
    value = f'<dd data-figure="{escape(fact.key)}">{escape(fact.text)}</dd>'
    return f"<div><dt>{escape(fact.label)}</dt>{value}{note}</div>"


def _table(table: Table) -> str:
    return folded(table.title, table_grid(table)) if table.is_folded else table_grid(table)


def table_grid(table: Table) -> str:
    """A table, open."""
    shown = grid(
        Grid(
            table.title,
            tuple(c.label or "#" for c in table.columns),
            tuple(
                tuple(c.text(v) for c, v in zip(table.columns, row, strict=True))
                for row in table.rows
            ),
            "".join(_side(table, i) for i in range(len(table.columns))),
            *(table.marked, table.key, tuple(link.url for link in table.links)),
        )
    )
    return shown + (paragraph(table.foot, style="note") if table.foot else "")


def _side(table: Table, index: int) -> str:
    if table.columns[index].is_wide:
        return "w"
    return "r" if table.is_number(index) else "l"

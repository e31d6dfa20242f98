"""Docutils tables and sections from rows of text; backquotes make code."""

import re
from collections.abc import Sequence

from docutils import nodes
from docutils.nodes import Node

_CODE = re.compile(r"`([^`]+)`")


def words(text: str) -> list[Node]:
    """Text with its code set as code."""
    parts = _CODE.split(text)
    made: list[Node] = []
    for i, part in enumerate(parts):
        if part:
            made.append(nodes.literal(text=part) if i % 2 else nodes.Text(part))
    return made


def paragraph(text: str) -> Node:
    return nodes.paragraph("", "", *words(text))


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Node:
    """A table that scrolls by itself where it is wider than the page."""
    group = nodes.tgroup("", cols=len(header))
    group += [nodes.colspec(colwidth=1) for _ in header]
    group += nodes.thead("", _row(header))
    group += nodes.tbody("", *map(_row, rows))
    return nodes.table("", group)


def _row(cells: Sequence[str]) -> Node:
    return nodes.row("", *(nodes.entry("", paragraph(cell)) for cell in cells))


def section(key: str, title: str, *body: Node) -> Node:
    """A part of a page with a link target."""
    return nodes.section("", nodes.title("", "", *words(title)), *body, ids=[key], names=[key])


def literal(text: str, language: str = "text") -> Node:
    return nodes.literal_block(text, text, language=language)

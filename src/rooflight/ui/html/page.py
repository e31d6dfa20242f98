"""HTML elements as strings: one page that stands alone, every text escaped.

In: words, tables and SVG. Out: markup. Tables and pictures scroll inside the page, by pointer and
by keyboard; headings make its outline, and each section is a link target.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from rooflight.ui.html.style import STYLE

HEAD = (
    '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
    '<meta name="viewport" content="width=device-width, initial-scale=1">',
    '<meta name="color-scheme" content="light dark">',
)


@dataclass(frozen=True, slots=True)
class Grid:
    """A table: its first column names the rows, numbers are flush right."""

    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    align: str  # a letter a column: l, r for numbers, w for words that may wrap
    marked: int | None = None  # the row to point out
    key: str = ""
    urls: tuple[str, ...] = ()  # of pages of this site, where the names of the rows lead

    def __post_init__(self) -> None:
        widths = {len(self.header), len(self.align), *map(len, self.rows)}
        assert len(widths) == 1, f"a table with rows of {widths} cells"


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the page under its own heading."""

    key: str  # names the link target
    heading: str
    body: tuple[str, ...]


def page(*, title: str, kicker: str, lead: Sequence[str], sections: Sequence[Section]) -> str:
    """The whole document; `lead` is markup below the title, before the contents."""
    links = "".join(f'<li><a href="#{s.key}">{escape(s.heading)}</a></li>' for s in sections)
    return "\n".join(
        [
            *HEAD,
            f"<title>{escape(title)}</title>",
            f"<style>\n{STYLE}\n</style>",
            "</head>",
            "<body>",
            '<a class="skip" href="#main">Skip to the plan</a>',
            f'<header>\n<p class="kicker">{escape(kicker)}</p>\n<h1>{escape(title)}</h1>',
            *lead,
            "</header>",
            f'<nav aria-label="Contents"><ul>{links}</ul></nav>',
            '<main id="main">',
            *map(_section, sections),
            "</main>",
            "</body>",
            "</html>",
            "",
        ]
    )


def _section(section: Section) -> str:
    head = f'<h2 id="{section.key}-title">{escape(section.heading)}</h2>'
    start = f'<section id="{section.key}" aria-labelledby="{section.key}-title">'
    return "\n".join([start, head, *section.body, "</section>"])


def paragraph(words: str, *, style: str = "") -> str:
    named = f' class="{style}"' if style else ""
    return f"<p{named}>{escape(words)}</p>"


def bullets(items: Sequence[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(item)}</li>" for item in items) + "</ul>"


def scrolling(label: str, markup: str) -> str:
    """What may be wider than the page: it scrolls by itself, with the arrow keys too."""
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(label)}">'
        f"\n{markup}\n</div>"
    )


def grid(table: Grid) -> str:
    """A table with its caption."""
    heads = zip(table.header, table.align, strict=True)
    cells = [f'<th scope="col"{_side(a)}>{escape(h)}</th>' for h, a in heads]
    lines = [f"<caption>{escape(table.caption)}</caption>"]
    lines += [f"<thead><tr>{''.join(cells)}</tr></thead>", "<tbody>"]
    for i, row in enumerate(table.rows):
        marked = ' class="marked"' if i == table.marked else ""
        url = table.urls[i] if table.urls else ""
        lines.append(f"<tr{marked}>{_row(row, table.align, url)}</tr>")
    start = f'<table data-table="{table.key}">' if table.key else "<table>"
    return scrolling(table.caption, "\n".join([start, *lines, "</tbody>", "</table>"]))


def _row(cells: Sequence[str], align: str, url: str) -> str:
    name = f'<a href="{escape(url)}">{escape(cells[0])}</a>' if url else escape(cells[0])
    first = f'<th scope="row"{_side(align[0])}>{name}</th>'
    rest = zip(cells[1:], align[1:], strict=True)
    return first + "".join(f"<td{_side(a)}>{breaking(cell)}</td>" for cell, a in rest)


def breaking(words: str) -> str:
    """Escaped; a web address leads there, a list without blanks may break at its commas."""
    if " " in words:
        return escape(words)
    if words.startswith(("https://", "http://")):  # no file of one's own, no javascript:
        return f'<a href="{escape(words)}" rel="noreferrer">{escape(words)}</a>'
    return escape(words).replace(",", ",<wbr>")


def _side(align: str) -> str:
    style = {"l": "", "r": "number", "w": "words"}[align]
    return f' class="{style}"' if style else ""


def figure(picture: str, *, caption: str, describe: str = "", least: int = 700) -> str:
    """An SVG with a description for those who cannot see it, at least so many pixels wide."""
    described = picture.replace(
        "</title>", f"</title>\n<desc>{escape(describe or caption)}</desc>", 1
    )
    sized = described.replace("<svg ", f'<svg style="min-width:{least}px" ', 1)
    words = f"<figcaption>{escape(caption)}</figcaption>"
    return f"<figure>\n{scrolling(caption, sized)}\n{words}\n</figure>"


def folded(summary: str, markup: str) -> str:
    """What only some want to see."""
    return f"<details>\n<summary>{escape(summary)}</summary>\n{markup}\n</details>"


def code(text: str) -> str:
    return f"<pre><code>{escape(text)}</code></pre>"

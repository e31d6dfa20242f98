"""`{errata}`: where the book's numbers are wrong, from the data that `rooflight book` checks."""

from docutils.nodes import Node
from sphinx.util.docutils import SphinxDirective

from handbook.tables import section, table
from rooflight.book.entry import Chapter, Entry, Erratum, chapters
from rooflight.book.solve import show

_HEADER = ("entry", "what", "editions", "printed", "right", "why")


class Errata(SphinxDirective):
    """A table for each chapter that has an erratum."""

    def run(self) -> list[Node]:
        return [_chapter(chapter) for chapter in chapters() if _rows(chapter)]


def _chapter(chapter: Chapter) -> Node:
    key = f"errata-{chapter.name}"
    return section(key, f"{chapter.name}: {chapter.title}", table(_HEADER, _rows(chapter)))


def _rows(chapter: Chapter) -> list[tuple[str, ...]]:
    return [row for entry in chapter.entries for e in entry.errata for row in _erratum(entry, e)]


def _erratum(entry: Entry, erratum: Erratum) -> list[tuple[str, ...]]:
    """A row for each wrong value, the reason in the first; one row where it is no value."""
    editions = ", ".join(erratum.wrong_in)
    rows: list[tuple[str, ...]] = []
    for name, right in erratum.correct.items():
        expected = entry.expected[name]
        wrong = "-" if expected.printed is None else show(expected.printed, expected.unit)
        why = "as above" if rows else erratum.why
        what = f"`{entry.id}`", f"{entry.title}: `{name}`"
        rows.append((*what, editions, wrong, show(right, expected.unit), why))
    return rows or [(f"`{entry.id}`", entry.title, editions, "-", "-", erratum.why)]

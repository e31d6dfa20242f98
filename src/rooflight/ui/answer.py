"""`Answer`: what a view says, as data: facts, tables, pictures, films, sentences, the command.

Numbers are those of the library, unrounded; a column or a fact says how a person reads them. One
`Answer` makes the page, the JSON, the CSV and the files of pictures, so they cannot differ.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from urllib.parse import urlencode

from rooflight.units import format_count, format_seconds, format_si

Value = str | int | float | bool | None
Show = Callable[[float], str]


def show_bytes(value: float) -> str:
    """
    >>> show_bytes(9.6e10)
    '96 GB'
    """
    return format_si(value, "B")


def show_share(value: float) -> str:
    """
    >>> show_share(0.4567)
    '45.7%'
    """
    return f"{value:.1%}"


def show_count(value: float) -> str:
    """
    >>> show_count(8960)
    '8,960'
    """
    return format_count(int(value))


def show_dollars(value: float) -> str:
    """
    >>> show_dollars(1.234)
    '$1.23'
    """
    return f"${value:,.2f}" if value >= 1 else f"${value:.3g}"


show_seconds: Show = format_seconds


@dataclass(frozen=True, slots=True)
class Column:
    """One column: `key` names it in JSON and CSV, unit included; `show` prints a number of it."""

    key: str
    label: str
    show: Show | None = None  # None: words, or numbers as they are
    is_wide: bool = False  # sentences that may wrap
    unknown: str = "-"  # what stands for None
    is_right: bool = False  # words that begin with a number, set as numbers are

    def text(self, value: Value) -> str:
        return self.unknown if value is None else shown(value, self.show)


def shown(value: Value, show: Show | None) -> str:
    """A value as a person reads it; unknown is a dash.

    >>> shown(0.25, show_share), shown(None, show_share), shown(True, None)
    ('25.0%', '-', 'yes')
    """
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str) or show is None:
        return f"{value:g}" if isinstance(value, float) else str(value)
    return show(value)


@dataclass(frozen=True, slots=True)
class ViewLink:
    """Another question, of any view, or a place in the handbook of this view."""

    words: str
    view: str
    question: tuple[tuple[str, str], ...] = ()

    @property
    def url(self) -> str:
        return f"/{self.view}" + (f"?{urlencode(self.question)}" if self.question else "")


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of values under columns; the first column names the rows."""

    key: str
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Value, ...], ...]
    marked: int | None = None  # the row to point out
    is_folded: bool = False  # behind its caption until it is asked for
    is_first: bool = False  # above the pictures
    keep: tuple[str, ...] = ()  # labels in the order in which a narrow terminal keeps columns
    links: tuple[ViewLink, ...] = ()  # where the name of each row leads, if anywhere
    foot: str = ""  # what its figures rest on
    left: int = 0  # rows left out, the least important
    is_list: bool = False  # in a terminal each row is an item: sentences, not columns

    def __post_init__(self) -> None:
        widths = {len(self.columns), *map(len, self.rows)}
        assert len(widths) == 1, f"table {self.key} has rows of {widths} cells"
        assert len(self.links) in (0, len(self.rows)), f"table {self.key} lacks links"

    def first(self, most: int | None) -> "Table":
        """The same with at most so many rows."""
        left = len(self.rows) - len(self.rows[:most])
        return replace(self, rows=self.rows[:most], links=self.links[:most], left=left)

    @property
    def title(self) -> str:
        """The caption, and how much is not shown."""
        return self.caption + (f" ({self.left:,} smaller ones left out)" if self.left else "")

    def is_number(self, index: int) -> bool:
        """Whether a column has numbers only, which are set flush right."""
        values = [row[index] for row in self.rows if row[index] is not None]
        column = self.columns[index]
        shown = column.show is not None or column.is_right
        return shown or (bool(values) and all(isinstance(v, int | float) for v in values))


@dataclass(frozen=True, slots=True)
class Fact:
    """A number at the head of the answer, in a box of its own."""

    key: str
    label: str
    value: Value
    show: Show | None = None
    note: str = ""

    @property
    def text(self) -> str:
        return shown(self.value, self.show)


@dataclass(frozen=True, slots=True)
class Picture:
    """An SVG of `report/`; `caption` says in words what it shows, for those who cannot see it."""

    key: str
    svg: str
    caption: str
    least: int = 0  # pixels of width below which it scrolls; 0: it shrinks with the page


@dataclass(frozen=True, slots=True)
class Frame:
    """One still of a film and what happens in it."""

    svg: str
    words: str


@dataclass(frozen=True, slots=True)
class Film:
    """Stills that the page shows one after another; it computes none of them."""

    key: str
    title: str
    frames: tuple[Frame, ...]
    caption: str
    seconds: float = 0.8  # each still

    def __post_init__(self) -> None:
        assert self.frames, f"film {self.key} has no frame"


@dataclass(frozen=True, slots=True)
class Answer:
    """Everything one question brings; the first sentence is the answer itself."""

    sentences: tuple[str, ...]
    facts: tuple[Fact, ...] = ()
    tables: tuple[Table, ...] = ()
    pictures: tuple[Picture, ...] = ()
    films: tuple[Film, ...] = ()
    notes: tuple[str, ...] = ()  # what to know of the first table; "" begins a paragraph
    links: tuple[ViewLink, ...] = ()
    figures: tuple[tuple[str, object], ...] = ()  # JSON beyond facts and tables
    command: str = ""  # prints the same numbers in a terminal


def joined(parts: Iterable[Answer]) -> Answer:
    """Several answers as one, in order."""
    every = tuple(parts)
    return Answer(
        sentences=tuple(s for one in every for s in one.sentences),
        facts=tuple(f for one in every for f in one.facts),
        tables=tuple(t for one in every for t in one.tables),
        pictures=tuple(p for one in every for p in one.pictures),
        notes=tuple(n for one in every for n in one.notes),
    )

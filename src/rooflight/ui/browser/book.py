"""Book: every worked number with its derivation, errata marked, and every figure live.

The numbers are those of `rooflight book`; those of figures are of the PDF edition of 2025, and in
chapter 12 of the newer one. In `figures.toml`, `question` may name {model} and {on}, which are
filled with what was asked for.
"""

import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.resources import files

from rooflight.algebra.notation import parse_contraction, parse_tensor
from rooflight.book.entry import Chapter, Entry, Problem, chapters, find
from rooflight.book.solve import BookAnswer, Solution, show, solve
from rooflight.errors import UsageError
from rooflight.models.presets import model_names
from rooflight.ui.answer import (
    Answer,
    Column,
    Fact,
    Table,
    Value,
    ViewLink,
    joined,
    show_count,
)
from rooflight.ui.answers.book import problem_answers
from rooflight.ui.browser.view import Field, View, ViewQuery

_EVERYTHING = "everything"
_ONLY = (_EVERYTHING, "worked problems", "errata", "measured", "figures")
_NUMBERS = (
    Column("title", "number", is_wide=True),
    Column("printed", "the book prints", is_wide=True),
    Column("erratum", "erratum"),
    Column("problem", "problem"),
    Column("chapter", "chapter"),
    Column("entry", "entry"),
)
_FIGURES = (
    Column("shows", "figure", is_wide=True),
    Column("where", "in the book"),
    Column("view", "view"),
    Column("picture", "picture"),
)


MODEL, ON = "llama3-70b", "v5p:4x4x4"


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of the book: what it shows, and the view and picture that show it live."""

    where: str  # its number, or the chapter it is in
    shows: str
    view: str
    picture: str  # key of a picture or film of the answer
    question: tuple[tuple[str, str], ...] = ()

    def link(self, model: str = MODEL, on: str = ON) -> ViewLink:
        """The question, filled in."""
        filled = tuple(
            (name, value.replace("{model}", model).replace("{on}", on))
            for name, value in self.question
        )
        return ViewLink(self.shows, self.view, filled)


def _read(rows: str) -> Iterator[Figure]:
    for row in tomllib.loads(rows)["figures"]:
        question = tuple(row.pop("question", {}).items())
        yield Figure(**row, question=question)


FIGURES = tuple(_read((files("rooflight.ui.browser") / "figures.toml").read_text("utf-8")))


def answer(question: ViewQuery) -> Answer:
    """The numbers that match; of one, how it comes about."""
    text = question.text("entry")
    asked = find(text) if text else None
    if isinstance(asked, Problem):
        return _derived(asked)
    if question.text("only") == "figures":
        return _figures(question)
    chosen = [asked] if asked else _chapters(question.text("chapter"))
    return _listed(chosen, question)


def _chapters(name: str) -> list[Chapter]:
    return [c for c in chapters() if name in ("all", c.name)]


def _listed(chosen: Sequence[Chapter], question: ViewQuery) -> Answer:
    words = question.text("search").casefold().split()
    found = [
        (chapter, entry)
        for chapter in chosen
        for entry in chapter.entries
        if _is_meant(entry, chapter, words, question.text("only"))
    ]
    total = sum(len(c.entries) for c in chapters())
    if not found:
        raise UsageError(
            f"none of {total} numbers matches {question.text('search')!r}"
            f" ({question.text('only')}, chapter {question.text('chapter')})",
            hint="search for fewer words, in all chapters, or for everything",
        )
    wrong = sum(bool(entry.errata) for _, entry in found)
    return Answer(
        sentences=(
            f"{len(found)} of the book's {total} numbers, {wrong} with an erratum;"
            " each is derived again when it is opened",
            "Follow one to its derivation. Numbers and their sources are our own records; the"
            " book's text is not here.",
        ),
        facts=(
            Fact("entries", "numbers", len(found), show_count),
            Fact("errata", "with an erratum", wrong, show_count),
        ),
        tables=(
            Table(
                "entries",
                "Worked numbers of the book",
                _NUMBERS,
                tuple(_row(chapter, entry) for chapter, entry in found),
                links=tuple(_entry_link(entry) for _, entry in found),
            ),
        ),
        links=(ViewLink("The figures of the book, live", "book", (("only", "figures"),)),),
        command=_list_command(question),
    )


def _is_meant(entry: Entry, chapter: Chapter, words: Sequence[str], only: str) -> bool:
    if only == "worked problems" and not entry.problem:
        return False
    if only == "errata" and not entry.errata:
        return False
    if only == "measured" and not any(e.is_measured for e in entry.expected.values()):
        return False
    asked = " ".join(f"{p.title} {p.question}" for p in chapter.problems if p.name == entry.problem)
    text = f"{entry.id} {entry.kind} {entry.title} {chapter.title} {asked}".casefold()
    return all(word in text for word in words)


def _row(chapter: Chapter, entry: Entry) -> tuple[Value, ...]:
    printed = "; ".join(
        f"{name} {show(e.printed, e.unit)}"
        for name, e in entry.expected.items()
        if e.printed is not None
    )
    erratum = "erratum" if entry.errata else None
    return (
        *(entry.title, printed or None, erratum),
        *(entry.problem or None, chapter.name, entry.id),
    )


def _entry_link(entry: Entry) -> ViewLink:
    return ViewLink(entry.title, "book", (("entry", entry.id),))


def _list_command(question: ViewQuery) -> str:
    chapter = question.text("chapter")
    return "rooflight book" if chapter == "all" else f"rooflight book {chapter}"


def _figures(question: ViewQuery) -> Answer:
    model, on = question.model("model").name, str(question.slice("on"))
    return Answer(
        sentences=(
            f"{len(FIGURES)} figures and animations of the book, live; follow one to its view",
            f"Those of a model are drawn for {model}, those of a slice of your choice for {on}.",
        ),
        tables=(
            Table(
                "figures",
                "Figures of the book and where they are live",
                _FIGURES,
                tuple((f.shows, f.where, f.view, f.picture) for f in FIGURES),
                links=tuple(f.link(model, on) for f in FIGURES),
            ),
        ),
    )


def _derived(problem: Problem) -> Answer:
    solutions = [solve(entry) for entry in problem.entries]
    first, said = solutions[0], joined(problem_answers(problem, solutions))
    return replace(
        said,
        facts=tuple(_fact(a) for a in first.answers[:5]) if len(solutions) == 1 else (),
        links=(*_live(problem.entries), *_around(problem)),
        figures=tuple((s.entry.id, _document(s)) for s in solutions),
        command=f"rooflight book {problem.name}",
    )


def _document(solution: Solution) -> dict[str, object]:
    """The numbers of a solution, unrounded."""
    return {
        "status": solution.status,
        "answers": {a.name: a.value for a in solution.answers},
        "derivation": [asdict(line) for line in solution.derivation.lines],
    }


def _fact(found: BookAnswer) -> Fact:
    value = found.value
    note = f"{found.name}; the book: {show(found.expected.printed, found.expected.unit)}"
    if isinstance(value, tuple):
        return Fact(found.name, found.name, show(value, found.expected.unit), note=note)
    unit = found.expected.unit
    return Fact(found.name, found.name, value, lambda v: show(v, unit), note)


def _live(entries: Sequence[Entry]) -> list[ViewLink]:
    """The same question in the view that can be moved from there."""
    found = [link for entry in entries for link in (_as_shards(entry), _as_hops(entry)) if link]
    return list({link.url: link for link in found}.values())


def _by_unit(entry: Entry) -> dict[str, str]:
    """The first input of each unit, as text."""
    found: dict[str, str] = {}
    for given in entry.inputs.values():
        found.setdefault(given.unit, str(given.value))
    return found


def _as_shards(entry: Entry) -> ViewLink | None:
    units = _by_unit(entry)
    arrays = units.get("contraction") or units.get("tensor")
    if not arrays or not {"slice", "mesh"} <= units.keys():
        return None
    matmul = parse_contraction(arrays) if "->" in arrays else None
    tensors = matmul.operands if matmul else (parse_tensor(arrays),)
    dims = {dim: entry.inputs.get(dim) for tensor in tensors for dim in tensor.dims}
    sizes = [f"{dim}={i.value}" for dim, i in dims.items() if i and isinstance(i.value, int)]
    if len(sizes) < len(dims):
        return None
    where = (("on", units["slice"]), ("mesh", units["mesh"]), ("dims", ",".join(sizes)))
    return ViewLink(f"Look at it: {arrays}", "shard", (("arrays", arrays), *where))


def _as_hops(entry: Entry) -> ViewLink | None:
    units = _by_unit(entry)
    nbytes = entry.inputs.get("nbytes")
    if not nbytes or not {"slice", "mesh", "axes"} <= units.keys():
        return None
    where = (("on", units["slice"]), ("mesh", units["mesh"]), ("axes", units["axes"]))
    amount = ("bytes", str(round(float(str(nbytes.value)))))
    return ViewLink("Watch the collective", "collectives", (amount, *where))


def _around(problem: Problem) -> tuple[ViewLink, ...]:
    """The entry before, the entry after, and the chapter."""
    everything = [(c, e) for c in chapters() for e in c.entries]
    places = [i for i, (_, e) in enumerate(everything) if e.id == problem.entries[0].id]
    at = places[0]
    chapter = everything[at][0]
    last = at + len(problem.entries)
    links = [
        ViewLink(f"Chapter {chapter.name}: {chapter.title}", "book", (("chapter", chapter.name),))
    ]
    if at:
        before = everything[at - 1][1]
        links.append(ViewLink(f"Before: {before.title}", "book", (("entry", before.id),)))
    if last < len(everything):
        after = everything[last][1]
        links.append(ViewLink(f"Next: {after.title}", "book", (("entry", after.id),)))
    return tuple(links)


VIEW = View(
    "book",
    "Book",
    "The book's worked numbers, each derived again; its figures, live for any model and chip.",
    (
        Field(
            *("chapter", "Chapter", "choice", "all"), choices=("all", *(c.name for c in chapters()))
        ),
        Field("search", "Search", "text", "", "words of a title or a question", is_optional=True),
        Field("only", "Only", "choice", _EVERYTHING, choices=_ONLY),
        Field(
            *("entry", "Number or problem", "text", "", "3.2 or sharding.q2_1; empty: the list"),
            is_optional=True,
        ),
        Field(
            *("model", "Model of figures", "text", MODEL),
            choices=model_names(),
            when=("only", "figures"),
        ),
        Field("on", "Slice of figures", "text", ON, when=("only", "figures")),
    ),
    answer,
)

"""The figures and animations of the book, and where each is live in the explorer.

Numbers of figures are those of the PDF edition of 2025; those of chapter 12 are the newer
edition's. In `figures.toml`, `question` may name {model} and {on}, which *Book* fills with what was
asked for.
"""

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files

from rooflight.ui.answer import ViewLink

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

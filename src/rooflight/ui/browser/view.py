"""`View`: a question that can be asked in the browser, and the contract every view follows.

A module of this folder has one `VIEW`. Its `Field`s say what may be asked; a `ViewQuery` holds the
text of every field, checked; `answer` asks the library. Errors of `rooflight.errors` become words.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlencode

from rooflight.dtypes import Dtype, parse_dtype
from rooflight.errors import ParseError, UnknownNameError, UsageError
from rooflight.hardware.slice import Slice, parse_slice
from rooflight.models.presets import load_model
from rooflight.models.spec import ModelSpec
from rooflight.ui.answer import Answer
from rooflight.units import parse_count, parse_length, parse_seconds

Watch = Callable[[int, int, int], None]
Kind = Literal["choice", "count", "length", "number", "time", "text", "switch"]
_LONGEST = 400  # characters of a value
_MOST_SHOWN = 100  # of them in a sentence
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_NUMBER = re.compile(r"[0-9]{1,12}(\.[0-9]{1,12})?(e-?[0-9]{1,2})?")


@dataclass(frozen=True, slots=True)
class Field:
    """One thing to fill in; its value is text, in the grammar of the command line.

    `choices` are all there is for a choice, and suggestions for text. `stops` put a slider beside
    the field, which moves it from stop to stop.
    """

    name: str
    label: str
    kind: Kind
    default: str
    help: str = ""
    choices: tuple[str, ...] = ()
    stops: tuple[str, ...] = ()
    least: float = 1
    most: float = 1e12
    is_optional: bool = False  # may be left empty
    when: tuple[str, ...] = ()  # a choice, and those of its values for which this field counts

    def check(self, text: str) -> str:
        """The text, if it is one of this field's; else the error that says why not."""
        if len(text) > _LONGEST or _CONTROL.search(text):
            raise ParseError(
                f"{self.label} is {len(text)} characters, or has some that cannot be printed",
                hint=f"write {self.default or 'fewer'}",
            )
        if not text.strip():
            if self.is_optional:
                return ""
            raise ParseError(f"{self.label} is empty", hint=f"write {self.default}")
        match self.kind:
            case "choice" if text not in self.choices:
                raise UnknownNameError(self.label, text, self.choices)
            case "switch" if text not in ("yes", "no"):
                raise UnknownNameError(self.label, text, ("yes", "no"))
            case "count":
                self._bound(parse_count(text, what=self.label), text)
            case "length":
                self._bound(parse_length(text, what=self.label), text)
            case "time":
                self._bound(parse_seconds(text, what=self.label), text)
            case "number":
                self._bound(_number(self, text), text)
            case _:
                pass
        return text

    def _bound(self, value: float, text: str) -> None:
        if not self.least <= value <= self.most:
            raise UsageError(
                f"{self.label} {text} is not from {self.least:,g} to {self.most:,g}",
                hint=f"write {self.default}" if self.default else f"write {self.least:g}",
            )


def _number(field: Field, text: str) -> float:
    if not _NUMBER.fullmatch(text.strip()):
        raise ParseError(f"{field.label} {text!r} is not a number", hint=f"write {field.default}")
    return float(text)


@dataclass(frozen=True, slots=True)
class Files:
    """What the server may read: the folder it was started in, and what was opened by name."""

    folder: Path = Path()
    opened: tuple[Path, ...] = ()

    def path(self, text: str) -> Path:
        """A path that a question names; it is one of these or does not exist for us."""
        try:
            path = (self.folder / text).resolve()
            is_there = path.exists()
        except (OSError, ValueError):  # longer than a path can be, or no path at all
            path, is_there = Path(), False
        inside = path.is_relative_to(self.folder.resolve())
        known = any(path.is_relative_to(one.resolve()) for one in self.opened)
        if not ((inside or known) and is_there):
            shown = text[:_MOST_SHOWN]
            raise UsageError(
                f"there is no {shown!r} in the folder that the explorer was started in",
                hint="start it there, or give the file at the start: rooflight explore --open FILE",
            )
        return path


@dataclass(frozen=True, slots=True)
class ViewQuery:
    """The text of every field of a view, checked; read as the command line reads it."""

    values: tuple[tuple[str, str], ...]
    files: Files
    watch: Watch | None = None  # told how far an answer is: done, of how many, what was counted

    def text(self, name: str) -> str:
        return dict(self.values)[name]

    def count(self, name: str) -> int:
        return parse_count(self.text(name), what=name)

    def length(self, name: str) -> int:
        """Positions of a sequence: 8k are 8,192."""
        return parse_length(self.text(name), what=name)

    def number(self, name: str) -> float:
        return float(self.text(name))

    def seconds(self, name: str) -> float:
        return parse_seconds(self.text(name), what=name)

    def is_on(self, name: str) -> bool:
        return self.text(name) == "yes"

    def dtype(self, name: str) -> Dtype:
        return parse_dtype(self.text(name))

    def slice(self, name: str) -> Slice:
        return parse_slice(self.text(name))

    def model(self, name: str) -> ModelSpec:
        """A built-in model, or a config.json below the folder of the explorer."""
        text = self.text(name)
        if text.endswith(".json") or "/" in text or text.startswith("."):
            return load_model(str(self.files.path(text)))
        return load_model(text)

    @property
    def query(self) -> str:
        """The whole question as the query of a URL."""
        return urlencode(self.values)


@dataclass(frozen=True, slots=True)
class View:
    """One page of the explorer.

    `answer` is what a moving slider waits for. `more`, where a view has it, brings what takes
    longer: the page asks for it when the answer is there, and greys the old one until it comes.
    """

    name: str  # in the URL
    title: str
    about: str  # one sentence, on the list of views
    fields: tuple[Field, ...]
    answer: Callable[[ViewQuery], Answer]
    more: Callable[[ViewQuery], Answer] | None = None
    is_pure: bool = True  # the same question has the same answer: it may be kept

    def ask(self, given: Mapping[str, str], files: Files) -> ViewQuery:
        """Checks what was given; what was not is as by default."""
        known = {field.name for field in self.fields}
        for name in given:
            if name not in known:
                raise UnknownNameError(f"field of {self.title}", name, known)
        return ViewQuery(
            tuple((f.name, f.check(given.get(f.name, f.default))) for f in self.fields), files
        )

"""`Site`: from a path and a query to a response; knows nothing of sockets.

/                      the list of views
/VIEW?field=...        a page with the answer in it
/part/VIEW[/more]?...  the answer alone, as markup to be swapped in
/api/VIEW[/more]?...   the same as JSON; `.csv?table=KEY` and `.svg?picture=KEY` take one of it
/openapi.json          what may be asked, for machines
/progress/VIEW         how far its answer is
/assets/NAME           a fixed list of files
"""

import csv
import io
import json
import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from http import HTTPStatus
from importlib.resources import files
from threading import Lock, Thread
from urllib.parse import parse_qsl

from rooflight.errors import ModelError, RooflightError, UnknownNameError, UsageError
from rooflight.ui.answer import Answer, Table, Value
from rooflight.ui.browser.openapi import openapi
from rooflight.ui.browser.page import answer_markup, error_markup, home_page, view_page
from rooflight.ui.browser.view import Files, View, ViewQuery
from rooflight.ui.html.style import STYLE

# An answer as JSON and CSV: the numbers of the library, unrounded.


def answer_document(view: View, question: ViewQuery, answer: Answer) -> dict[str, object]:
    """What `/api/VIEW` sends."""
    facts = {fact.key: plain(fact.value) for fact in answer.facts}
    return {
        "view": view.name,
        "question": dict(question.values),
        "figures": facts | dict(answer.figures),
        "tables": {table.key: table_document(table) for table in answer.tables},
        "pictures": {picture.key: picture.svg for picture in answer.pictures},
        "films": {
            film.key: [{"words": f.words, "picture": f.svg} for f in film.frames]
            for film in answer.films
        },
        "sentences": [*answer.sentences, *filter(None, answer.notes)],
        "command": answer.command,
    }


def table_document(table: Table) -> list[dict[str, Value]]:
    """A row an object, under the keys of the columns."""
    keys = [column.key for column in table.columns]
    return [dict(zip(keys, map(plain, row), strict=True)) for row in table.rows]


def plain(value: Value) -> Value:
    """What JSON can say: a number without end becomes unknown."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def answer_json(view: View, question: ViewQuery, answer: Answer) -> str:
    return json.dumps(answer_document(view, question, answer), allow_nan=False)


def answer_csv(answer: Answer, key: str) -> str:
    """One table; without a key the first one."""
    tables = {table.key: table for table in answer.tables}
    if key and key not in tables:
        raise UnknownNameError("table", key, tables)
    if not tables:
        return ""
    table = tables[key] if key else answer.tables[0]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([column.key for column in table.columns])
    writer.writerows([["" if plain(v) is None else v for v in row] for row in table.rows])
    return out.getvalue()


def answer_svg(answer: Answer, key: str) -> str:
    """One picture, or `FILM.3`, the third still of a film; without a key the first."""
    pictures = {picture.key: picture.svg for picture in answer.pictures}
    pictures |= {
        f"{film.key}.{number}": frame.svg
        for film in answer.films
        for number, frame in enumerate(film.frames, start=1)
    }
    if (key and key not in pictures) or not pictures:
        raise UnknownNameError("picture", key, pictures)
    return pictures[key] if key else next(iter(pictures.values()))


# Answers that were given lately: an export or a step back asks nothing again.

_MOST = 64
_SOON_S = 0.3  # that a page waits for its answer


class AnswerCache:
    """A bounded memory of answers; one question of a view is worked out at a time.

    Python runs one thread at a time anyway, so two answers at once would only both be late. What
    takes long (`more`) has a turnstile of its own and does not hold up an answer.
    """

    def __init__(self) -> None:
        self._answers: OrderedDict[object, Answer] = OrderedDict()
        self._turns: dict[tuple[str, str], Lock] = {}
        self.progress: dict[str, str] = {}  # of a view: how far its last slow answer is

    def answer(self, view: View, question: ViewQuery, part: str) -> Answer:
        def watch(done: int, total: int, count: int) -> None:
            self.progress[view.name] = f"{done} of {total}, {count:,} layouts priced"

        ask = view.more if part == "more" and view.more else view.answer
        if not view.is_pure:
            return ask(question)
        key = view.name, part, question.values
        with self._turns.setdefault((view.name, part), Lock()):
            self.progress.pop(view.name, None)
            found = self._answers.get(key) or ask(replace(question, watch=watch))
            self._answers.pop(key, None)  # views take turns with themselves only
            self._answers[key] = found
            if len(self._answers) > _MOST:
                self._answers.popitem(last=False)
        return found


_LONGEST_QUERY = 4000
_MOST_FIELDS = 64
_SELECTORS = {".csv": "table", ".svg": "picture"}
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".json": "application/json",
    ".csv": "text/csv; charset=utf-8",
    ".svg": "image/svg+xml",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
}


@dataclass(frozen=True, slots=True)
class Response:
    """What is sent back."""

    status: HTTPStatus
    content_type: str
    body: bytes


@dataclass(frozen=True, slots=True)
class _ViewPath:
    """A path of a view, taken apart."""

    view: View
    part: str  # answer or more
    form: str  # .html, .json, .csv, .svg


def _assets() -> dict[str, str]:
    folder = files("rooflight.ui.browser") / "assets"
    texts = {name: (folder / name).read_text("utf-8") for name in ("explore.js", "icon.svg")}
    return texts | {"explore.css": f"{STYLE}\n{(folder / 'explore.css').read_text('utf-8')}"}


class Site:
    """All views over the files that may be read."""

    def __init__(self, views: Sequence[View], allowed: Files) -> None:
        self.views = tuple(views)
        self._files = allowed
        self._kept = AnswerCache()
        self._assets = _assets()

    def warm(self) -> None:
        """Asks what every view shows first: what is derived once is there when somebody looks."""
        for view in self.views:
            if view.is_pure:
                self._kept.answer(view, view.ask({}, self._files), "answer")

    def respond(self, path: str, query: str) -> Response:
        """Never raises for a wrong question; a bug of ours raises."""
        if path == "/":
            return _response(".html", home_page(self.views))
        if path == "/openapi.json":
            return _response(".json", json.dumps(openapi(self.views)))
        if path.startswith("/assets/"):
            return self._asset(path.removeprefix("/assets/"))
        if path.startswith("/progress/"):
            words = self._kept.progress.get(path.removeprefix("/progress/"), "")
            return _response(".json", json.dumps({"progress": words}))
        kind, asked = self._find(path)
        if asked is None:
            return self._not_found(path)
        given: dict[str, str] = {}
        try:
            given = read_query(query)
            return self._answer(kind, asked, given)
        except ModelError:
            raise  # our own contradiction is not the fault of the question
        except RooflightError as error:
            return self._refuse(kind, asked, given, error)

    def _asset(self, name: str) -> Response:
        if name not in self._assets:
            return self._not_found(f"/assets/{name}")
        return _response(f".{name.rpartition('.')[2]}", self._assets[name])

    def _find(self, path: str) -> tuple[str, _ViewPath | None]:
        """The kind of a path (page, part, api) and what of which view it names."""
        words = path.removeprefix("/").split("/")
        kind = words.pop(0) if words[0] in ("part", "api") else "page"
        stem, dot, ending = words[-1].rpartition(".") if words else ("", "", "")
        form = f".{ending}" if dot and kind == "api" else (".json" if kind == "api" else ".html")
        if dot and kind == "api":
            words[-1] = stem
        name, rest = (words[0], words[1:]) if words else ("", [])
        view = next((v for v in self.views if v.name == name), None)
        has_more = view is not None and view.more is not None and kind != "page"
        is_known = rest == [] or (rest == ["more"] and has_more)
        if view is None or not is_known or form not in (".html", ".json", *_SELECTORS):
            return kind, None
        return kind, _ViewPath(view, rest[0] if rest else "answer", form)

    def _answer(self, kind: str, asked: _ViewPath, given: dict[str, str]) -> Response:
        view = asked.view
        if kind == "page":
            return self._page(view, given)
        selector = _SELECTORS.get(asked.form)
        chosen = given.pop(selector, "") if selector else ""
        question = view.ask(given, self._files)
        answer = self._kept.answer(view, question, asked.part)
        match asked.form:
            case ".csv":
                return _response(".csv", answer_csv(answer, chosen))
            case ".svg":
                return _response(".svg", answer_svg(answer, chosen))
            case ".json":
                return _response(".json", answer_json(view, question, answer))
            case _:
                return _response(".html", self._markup(view, question, asked.part))

    def _page(self, view: View, given: dict[str, str]) -> Response:
        """With `whole`, what takes longer too: for those without a script."""
        is_whole = given.pop("whole", "") == "yes"
        question = view.ask(given, self._files)
        parts = ["answer", *(["more"] if view.more else [])] if is_whole else []
        ready = {part: self._markup(view, question, part) for part in parts}
        ready = ready or self._soon(view, question)
        return _response(".html", view_page(self.views, view, dict(question.values), ready))

    def _soon(self, view: View, question: ViewQuery) -> dict[str, str]:
        """The answer if it takes a moment; else nothing, and the page asks while it is made."""
        made: Future[str] = Future()

        def make() -> None:
            try:
                made.set_result(self._markup(view, question, "answer"))
            except Exception as error:  # raised below, or by the page's own question
                made.set_exception(error)

        Thread(target=make, daemon=True).start()
        try:
            return {"answer": made.result(_SOON_S)}
        except TimeoutError:
            return {}

    def _markup(self, view: View, question: ViewQuery, part: str) -> str:
        answer = self._kept.answer(view, question, part)
        return answer_markup(view, answer, question.query, part=part)

    def _refuse(
        self, kind: str, asked: _ViewPath, given: Mapping[str, str], error: RooflightError
    ) -> Response:
        status = HTTPStatus.UNPROCESSABLE_ENTITY
        if kind == "api":
            text = json.dumps({"error": str(error), "hint": error.hint})
            return _response(".json", text, status)
        markup = error_markup(error)
        if kind == "part":
            return _response(".html", markup, status)
        parts = {"answer": markup, "more": ""}
        return _response(".html", view_page(self.views, asked.view, given, parts), status)

    def _not_found(self, path: str) -> Response:
        if path.startswith("/api/"):
            known = [f"/api/{view.name}" for view in self.views]
            text = json.dumps({"error": f"there is no {path}", "hint": f"one of {known}"})
            return _response(".json", text, HTTPStatus.NOT_FOUND)
        return _response(".html", home_page(self.views), HTTPStatus.NOT_FOUND)


def read_query(query: str) -> dict[str, str]:
    """Each field once, within bounds.

    >>> read_query("on=v5e&batch=4Ki")
    {'on': 'v5e', 'batch': '4Ki'}
    """
    if len(query) > _LONGEST_QUERY:
        raise UsageError(
            f"the query has {len(query)} characters, more than {_LONGEST_QUERY}",
            hint="ask with shorter values",
        )
    try:
        pairs = parse_qsl(
            query, keep_blank_values=True, strict_parsing=bool(query), max_num_fields=_MOST_FIELDS
        )
    except ValueError:
        raise UsageError("the query is not field=value&...", hint="write ?on=v5e") from None
    given = dict(pairs)
    if len(given) < len(pairs):
        raise UsageError("a field is given twice", hint="give each field once")
    return given


def _response(ending: str, text: str, status: HTTPStatus = HTTPStatus.OK) -> Response:
    return Response(status, _TYPES[ending], text.encode())

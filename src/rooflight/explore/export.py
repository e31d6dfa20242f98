"""An answer as JSON and CSV: the numbers of the library, unrounded."""

import csv
import io
import json
import math

from rooflight.errors import UnknownNameError
from rooflight.explore.answer import Answer, Table, Value
from rooflight.explore.view import Question, View


def answer_document(view: View, question: Question, answer: Answer) -> dict[str, object]:
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
        "sentences": list(answer.sentences),
        "command": answer.command,
    }


def table_document(table: Table) -> list[dict[str, Value]]:
    """A row an object, under the keys of the columns."""
    keys = [column.key for column in table.columns]
    return [dict(zip(keys, map(plain, row), strict=True)) for row in table.rows]


def plain(value: Value) -> Value:
    """What JSON can say: a number without end becomes unknown."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def answer_json(view: View, question: Question, answer: Answer) -> str:
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

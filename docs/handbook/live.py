"""Questions of `rooflight explore`, asked while a page is built: pictures and addresses."""

from urllib.parse import parse_qsl

from rooflight.ui.answer import Answer
from rooflight.ui.browser.view import Files, View, ViewQuery
from rooflight.ui.browser.views import VIEWS

PORT = 8080


def ask(text: str) -> tuple[View, ViewQuery]:
    """A view and its question, from `roofline?on=v5e`; an unknown field is an error."""
    name, _, query = text.partition("?")
    view = next(view for view in VIEWS if view.name == name)
    return view, view.ask(dict(parse_qsl(query, keep_blank_values=True)), Files())


def address(text: str) -> str:
    """Where the explorer answers it, the whole question in the address."""
    view, question = ask(text)
    return f"http://127.0.0.1:{PORT}/{view.name}?{question.query}"


def picture(text: str, key: str, *, frame: int = 0) -> tuple[str, str]:
    """The SVG of a picture, or of a frame of a film, and the command that has the same numbers."""
    view, question = ask(text)
    for answer in _answers(view, question):
        pictures = {one.key: one.svg for one in answer.pictures}
        films = {one.key: one.frames[frame].svg for one in answer.films if len(one.frames) > frame}
        found = (pictures | films).get(key)
        if found:
            return found, answer.command
    raise ValueError(f"{text} has no picture {key!r}")


def _answers(view: View, question: ViewQuery) -> list[Answer]:
    """What comes first, then what takes longer."""
    first = view.answer(question)
    return [first, view.more(question)] if view.more else [first]

"""What runs in the visitor's browser: each view, imported when it is first asked."""

from functools import cache
from importlib import import_module
from pathlib import Path

from rooflight.errors import UsageError
from rooflight.ui.browser.page import error_markup
from rooflight.ui.browser.site import Site
from rooflight.ui.browser.view import Files


@cache
def _site(view: str) -> Site:
    found = import_module(f"rooflight.ui.browser.{view}")
    return Site((found.VIEW,), Files(Path("/nowhere")))


def respond(path: str, query: str) -> tuple[int, str, str]:
    """The status, the type and the text of what is at a path such as `/part/roofline`."""
    try:
        found = _site(path.split("/")[2].partition(".")[0]).respond(path, query)
        return int(found.status), found.content_type, found.body.decode()
    except ModuleNotFoundError as error:
        words = f"this question needs {error.name}, which this page does not have"
        hint = "run `rooflight explore` on your own machine, which answers all of them"
        return 422, "text/html; charset=utf-8", error_markup(UsageError(words, hint=hint))

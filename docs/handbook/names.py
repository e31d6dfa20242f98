"""`{names}`: what a package exports beside classes and functions: types and constants."""

import importlib
import inspect
from types import ModuleType

from docutils.nodes import Node
from sphinx.util.docutils import SphinxDirective

from handbook.tables import table

_LONGEST = 160  # characters of a value


class Names(SphinxDirective):
    """A table, or nothing where all names are classes and functions."""

    required_arguments = 1

    def run(self) -> list[Node]:
        module = importlib.import_module(self.arguments[0])
        rows = [(f"`{name}`", f"`{_text(getattr(module, name))}`") for name in other_names(module)]
        return [table(("name", "value"), rows)] if rows else []


def other_names(module: ModuleType) -> list[str]:
    """Names that autodoc has nothing to say about."""
    return [n for n in module.__all__ if not _is_documented(getattr(module, n))]


def _is_documented(value: object) -> bool:
    is_own = getattr(value, "__module__", "").startswith("rooflight.")
    return is_own and (inspect.isclass(value) or callable(value))


def _text(value: object) -> str:
    text = str(value).replace("rooflight.", "").replace("typing.", "")
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."

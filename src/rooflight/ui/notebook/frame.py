"""The frame of a record in a notebook: its heading, tables and pictures, and a style of its own.

In: elements of `ui.html.page`, every text escaped. Out: one element, light or dark as the page.
"""

from html import escape
from importlib.resources import files

from rooflight.ui.html.style import dark_picture_rules, picture_rules

_STYLE = (files("rooflight.ui.notebook") / "frame.css").read_text("utf-8")


def framed(heading: str, *markup: str) -> str:
    """A record as one element."""
    dark = f"@media (prefers-color-scheme: dark) {{ .rooflight {{\n{dark_picture_rules()}\n}} }}"
    style = f"{_STYLE.strip()}\n.rooflight {{\n{picture_rules()}\n}}\n{dark}"
    head = f'<div class="rooflight"><style>\n{style}\n</style>\n<h4>{escape(heading)}</h4>'
    return "\n".join([head, *markup, "</div>"])

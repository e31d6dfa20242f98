"""The frame of a record in a notebook: its heading, tables and pictures, and a style of its own.

In: elements of `ui.html.page`, every text escaped. Out: one element, light or dark as the page.
"""

from html import escape

from rooflight.ui.html.style import dark_picture_rules, picture_rules

_STYLE = """
.rooflight { --paper: transparent; --ink: currentColor; --muted: #66727f; --grid: #c9d0d7;
  --idle: #dfe4e9; max-width: 62rem; }
.rooflight h4 { margin: 0.4rem 0; }
.rooflight p { margin: 0.3rem 0; max-width: 52rem; }
.rooflight .scroll { overflow-x: auto; }
.rooflight table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
.rooflight caption { text-align: left; padding: 0.3rem 0; opacity: 0.8; }
.rooflight th, .rooflight td { text-align: left; padding: 0.2rem 0.8rem 0.2rem 0;
  white-space: nowrap; vertical-align: top; }
.rooflight td.number, .rooflight th.number { text-align: right; }
.rooflight td.words { white-space: normal; min-width: 16rem; }
.rooflight tr.marked { font-weight: bold; }
.rooflight figure { margin: 0.6rem 0; }
.rooflight svg { max-width: 48rem; width: 100%; height: auto; min-width: 0 !important; }
"""


def framed(heading: str, *markup: str) -> str:
    """A record as one element."""
    dark = f"@media (prefers-color-scheme: dark) {{ .rooflight {{\n{dark_picture_rules()}\n}} }}"
    style = f"{_STYLE.strip()}\n.rooflight {{\n{picture_rules()}\n}}\n{dark}"
    head = f'<div class="rooflight"><style>\n{style}\n</style>\n<h4>{escape(heading)}</h4>'
    return "\n".join([head, *markup, "</div>"])

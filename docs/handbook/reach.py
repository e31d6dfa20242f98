"""What the theme leaves out for readers without a pointer or a screen."""

from typing import Any  # Sphinx's context of a page

from docutils.nodes import document
from sphinx.application import Sphinx


def reachable(
    app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: document | None
) -> None:
    """Code and tables that scroll take the keyboard; headings of the menu say their level."""
    del app, page, template, doctree
    if "body" in context:
        body = context["body"].replace("<pre>", '<pre tabindex="0">')
        table = '<div class="table-wrapper'
        context["body"] = body.replace(table, table.replace("<div", '<div tabindex="0"'))
    tree = context.get("furo_navigation_tree", "")
    context["furo_navigation_tree"] = tree.replace(
        'role="heading"', 'role="heading" aria-level="2"'
    )

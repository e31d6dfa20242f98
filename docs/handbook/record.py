"""`{record}`: what a notebook shows of a value that the python blocks of the page have made."""

import doctest
import re
from pathlib import Path
from typing import Any  # names of a page

from docutils import nodes
from docutils.nodes import Node
from sphinx.util.docutils import SphinxDirective

from rooflight.notebook import RENDERERS

_PYTHON = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Record(SphinxDirective):
    """The HTML of an expression."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[Node]:
        page = Path(self.env.doc2path(self.env.docname)).read_text(encoding="utf-8")
        names: dict[str, Any] = {}
        for example in doctest.DocTestParser().get_examples("\n".join(_PYTHON.findall(page))):
            exec(example.source, names)
        value = eval(self.arguments[0], names)
        markup = RENDERERS[type(value)](value)
        raw = nodes.raw("", markup, format="html")
        return [nodes.container("", raw, classes=["record"])]

"""`{steps}`: the guides, what each answers and in how many steps, read from the pages."""

import re
from pathlib import Path

from docutils import nodes
from docutils.nodes import Node
from sphinx import addnodes
from sphinx.util.docutils import SphinxDirective

from handbook.tables import table

_TITLE = re.compile(r"# [^\n]+\n\n(.+?)\n\n", re.DOTALL)
_STEPS = re.compile(r"^## (\w+) steps$.*?^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_TOC = re.compile(r"^:hidden:\n\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def guides(folder: Path) -> dict[str, str]:
    """The text of every guide by name, in the order of the contents."""
    listed = _TOC.search((folder / "index.md").read_text(encoding="utf-8"))
    assert listed, "the guides have no contents"
    return {name: (folder / f"{name}.md").read_text(encoding="utf-8") for name in listed[1].split()}


def steps(page: str) -> tuple[str, list[str]]:
    """How many steps a guide says it takes, in words, and the steps."""
    found = _STEPS.search(page)
    assert found, "a guide without steps"
    return found[1], found[2].splitlines()


class Steps(SphinxDirective):
    """A table of the guides beside this page."""

    def run(self) -> list[Node]:
        pages = guides(Path(self.env.doc2path(self.env.docname)).parent)
        rows = [("", _question(page), str(len(steps(page)[1]))) for page in pages.values()]
        made = table(("guide", "question", "steps"), rows)
        cells = [row.children[0].children[0] for row in made.findall(nodes.row)][1:]
        for cell, name in zip(cells, pages, strict=True):
            assert isinstance(cell, nodes.paragraph)
            cell.append(self._link(name))
        return [made]

    def _link(self, page: str) -> Node:
        """A link whose words are the title of the page."""
        target = {"refdomain": "std", "reftype": "doc", "reftarget": page}
        about = {"refdoc": self.env.docname, "refexplicit": False}
        return addnodes.pending_xref("", nodes.inline(), **target, **about)


def _question(page: str) -> str:
    found = _TITLE.match(page)
    assert found, "a guide without a question"
    return " ".join(found[1].split())

"""`{drawn}` and `{live}`: pictures made while the page is built, by a command or by the explorer.

In: a command of `rooflight` without `rooflight` (`:flag:` writes the picture), or a question of the
explorer (`:picture:`, `:frame:`); the text is the caption. Out: SVG in the page, how it was made,
and the address where the same question can be changed.
"""

import contextlib
import io
import shlex
import tempfile
from pathlib import Path
from typing import ClassVar

from docutils import nodes
from docutils.nodes import Node
from docutils.parsers.rst.directives import nonnegative_int, unchanged, unchanged_required
from sphinx.util.docutils import SphinxDirective

from handbook.live import PORT, address, picture
from rooflight.cli.main import main


class _Figure(SphinxDirective):
    """What both have in common."""

    required_arguments = 1
    final_argument_whitespace = True
    has_content = True

    def figure(self, svg: str, origin: list[Node]) -> list[Node]:
        caption = nodes.container("", *self.parse_content_to_nodes(), classes=["caption"])
        scroll = '<div class="scroll" tabindex="0" role="region" aria-label="figure">'
        raw = nodes.raw("", f"{scroll}{svg}</div>", format="html")
        words = nodes.paragraph("", "", *origin, classes=["origin"])
        return [nodes.container("", raw, caption, words, classes=["drawn"])]


class Drawn(_Figure):
    """A picture that a command writes."""

    option_spec: ClassVar = {"flag": unchanged, "live": unchanged}

    def run(self) -> list[Node]:
        command = " ".join(self.arguments[0].split())
        svg = draw(command, flag=self.options.get("flag", "--plot"))
        live = _live(self.options["live"]) if "live" in self.options else []
        words = [nodes.Text("Drawn by "), nodes.literal(text=f"rooflight {command}")]
        return self.figure(svg, [*words, *live])


class Live(_Figure):
    """A picture of the explorer, or one frame of a film."""

    option_spec: ClassVar = {"picture": unchanged_required, "frame": nonnegative_int}

    def run(self) -> list[Node]:
        question = self.arguments[0]
        frame = self.options.get("frame", 0)
        svg, command = picture(question, self.options["picture"], frame=frame)
        words = [nodes.Text("In a terminal: "), nodes.literal(text=command)]
        return self.figure(svg, [*words, *_live(question)])


def _live(question: str) -> list[Node]:
    return [
        nodes.Text("; "),
        nodes.reference("", "live", refuri=address(question)),
        nodes.Text(" while "),
        nodes.literal(text=f"rooflight explore --port {PORT}"),
        nodes.Text(" runs"),
    ]


def draw(command: str, *, flag: str) -> str:
    """The SVG that a command writes; a command that fails is an error of the page."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "picture.svg"
        talk = io.StringIO()
        with contextlib.redirect_stdout(talk), contextlib.redirect_stderr(talk):
            code = main([*shlex.split(command), flag, str(path)])
        if code not in (0, 1) or not path.exists():
            raise ValueError(f"`rooflight {command}` drew nothing: {talk.getvalue()[-500:]}")
        return path.read_text(encoding="utf-8")

"""`{verbs}`: every verb of the command line with its own help, as it prints it."""

from docutils.nodes import Node
from sphinx.util.docutils import SphinxDirective

from handbook.tables import literal, section
from rooflight.cli.verbs import load_verb, verb_names, verb_parser


class Verbs(SphinxDirective):
    """A section for each verb, in the order of `rooflight --help`."""

    def run(self) -> list[Node]:
        return [_verb(name) for name in verb_names()]


def _verb(name: str) -> Node:
    text = verb_parser(name, load_verb(name)).format_help()
    return section(name.replace(" ", "-"), f"`rooflight {name}`", literal(text.rstrip()))

"""`{verbs}`: every verb of the command line with its own help, as it prints it."""

from docutils.nodes import Node
from sphinx.util.docutils import SphinxDirective

from handbook.tables import literal, section
from rooflight.cli.verbs import TWO_WORDS, VERBS, load_verb, verb_parser


class Verbs(SphinxDirective):
    """A section for each verb, in the order of `rooflight --help`."""

    def run(self) -> list[Node]:
        return [_verb(name) for name in verb_names()]


def verb_names() -> list[str]:
    """Verbs of one word, those of two behind the one they begin with."""
    return [
        name for verb in VERBS for name in (verb, *(two for two in TWO_WORDS if _begins(two, verb)))
    ]


def _begins(two: str, verb: str) -> bool:
    return two.partition(" ")[0] == verb


def _verb(name: str) -> Node:
    text = verb_parser(name, load_verb(name)).format_help()
    return section(name.replace(" ", "-"), f"`rooflight {name}`", literal(text.rstrip()))

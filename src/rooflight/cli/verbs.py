"""The verbs: one module of this folder each, with `HELP`, `configure(parser)`, `run(args) -> int`.

A module is imported only when its verb is used, because `rooflight --help` must start about as
fast as the interpreter itself; so the one-line texts stand here as well.
"""

from importlib import import_module
from typing import Protocol, cast

from rooflight.cli.parser import Namespace, Parser
from rooflight.errors import UnknownNameError

VERBS = {
    "chips": "the hardware catalog: every chip, or every fact of one chip with its source",
    "slice": "a slice of chips: hosts, wraparound, totals, and how a mesh lies on it",
    "roofline": "ridge point, critical batch and log-log plot of a chip; matmuls as points on it",
    "collective": "seconds of one collective on a slice, and what binds it",
    "matmul": "a sharded matmul: derived steps, time of each, and the alternatives that lost",
    "shard": "a picture of which device holds what of an array",
    "model": "a model's parameters, FLOPs and KV cache by component; all presets if left out",
    "mfu": "utilisation of a training run under each convention, and who uses which",
    "plan": "the fastest layouts of a model on a slice that fit, and what binds them",
    "explain": "the forward and backward algorithm of a layer under a layout, in the notation",
    "fit": "whether a training step fits into a chip's memory, by component, and what would help",
    "budget": "FLOPs, days, dollars and kWh of a training run, or the best model for a budget",
    "pipeline": "a pipeline schedule: bubble, activations each device holds, and a Gantt chart",
    "export": "a plan as settings of MaxText, torchtitan or Megatron-LM, and what they cannot say",
    "import": "a MaxText or torchtitan configuration as layout, mesh and batch, with what is lost",
    "verify": "a plan, compiled for its slice with no chip attached: what the compiler makes of it",
    "hlo": "collectives, loops, matmuls and memory of a compiled program, from a dump of XLA",
    "doctor": "what this machine can compile for, with which versions, and how to get the rest",
    "book": "worked problems of the book, line by line, against its printed answers",
    "completion": "a completion script for bash, zsh or fish",
}


class Verb(Protocol):
    """What the frame needs of a verb's module."""

    HELP: str

    def configure(self, parser: Parser) -> None: ...
    def run(self, args: Namespace) -> int: ...


def load_verb(name: str) -> Verb:
    """Imports a verb's module; unknown names get a did-you-mean."""
    if name not in VERBS:
        raise UnknownNameError("verb", name, VERBS)
    return cast(Verb, import_module(f"rooflight.cli.{name}"))


def verb_parser(name: str, verb: Verb) -> Parser:
    """The parser of one verb, with the flags that every verb has."""
    parser = Parser(name, description=verb.HELP)
    verb.configure(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    return parser

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
    "plan": "train: the fastest layouts that fit on a slice; serve: the cheapest fleet for traffic",
    "forecast": "seconds of a training step of your own layout, with interval, beside the planner's"
    " best",
    "explain": "the algorithm of a layer under a layout, in training or serving, in the notation",
    "fit": "whether a training step or a served model fits into a chip's memory, by component",
    "frontier": "latency against throughput against cost of a served model, and what binds where",
    "simulate": "requests through the real scheduler under a virtual clock: TTFT, TPOT, goodput",
    "tokens": "text files as a folder of tokens for `train`, with a tokenizer of yours or one made"
    " of them",
    "train": "trains a plan in this process: data, checkpoints, events; goes on where it was"
    " stopped",
    "launch": "a run on several processes and hosts, watched, and started again when one dies",
    "ckpt": "an Orbax checkpoint on a laptop: tree, shapes, mesh, seals, bytes to restore it",
    "serve": "a model of a Hugging Face folder behind OpenAI's API, with limits from the plan",
    "route": "one address for several servers: requests go by shared prefixes and load",
    "bench": "open-loop load on an OpenAI-compatible server: latencies beside what is predicted",
    "budget": "FLOPs, days, dollars and kWh of a training run, or the best model for a budget",
    "pipeline": "a pipeline schedule: bubble, activations each device holds, and a Gantt chart",
    "export": "a plan as settings of MaxText, Megatron-LM, vLLM and more, and what they lack",
    "import": "a MaxText, torchtitan or Megatron-LM configuration as layout, mesh and batch",
    "verify": "a plan or your own function, compiled for its slice without a chip: what is odd",
    "hlo": "collectives, loops, matmuls, memory and time of a compiled program, from a dump of XLA",
    "profile": "where the time of a step went, from a trace of JAX's profiler: ops, overlap, host"
    " gaps",
    "reconcile": "a run's plan, program and measured steps, term by term: the gap as a waterfall of"
    " causes",
    "measure": "this machine as a chip: matmuls, memory and collectives, run on devices made of"
    " its cores",
    "intensity": "FLOPs and bytes of a JAX function of your own, and where it lies under a chip's"
    " roof",
    "validate": "predictions held against published measurements: errors by group, rows refused"
    " and why",
    "calibrate": "efficiencies, overlaps and overheads of a chip under its software, fitted to"
    " measured runs",
    "doctor": "what this machine can compile for, with which versions, and how to get the rest",
    "explore": "the same answers in a browser, served from this machine: rooflines, layouts, runs",
    "book": "worked problems of the book, line by line, against its printed answers",
    "completion": "a completion script for bash, zsh or fish",
}


TWO_WORDS = {"plan serve": "plan_serve"}  # verbs of two words, with flags of their own


class Verb(Protocol):
    """What the frame needs of a verb's module."""

    HELP: str

    def configure(self, parser: Parser) -> None: ...
    def run(self, args: Namespace) -> int: ...


def split_verb(words: list[str]) -> tuple[str, list[str]]:
    """The verb, of one word or two, and the words after it.

    >>> split_verb(["plan", "serve", "llama3-8b"])
    ('plan serve', ['llama3-8b'])
    """
    count = 2 if " ".join(words[:2]) in TWO_WORDS else 1
    return " ".join(words[:count]), words[count:]


def load_verb(name: str) -> Verb:
    """Imports a verb's module; unknown names get a did-you-mean."""
    module = TWO_WORDS.get(name, name)
    if name not in TWO_WORDS and name not in VERBS:
        raise UnknownNameError("verb", name, VERBS)
    return cast(Verb, import_module(f"rooflight.cli.{module}"))


def verb_parser(name: str, verb: Verb) -> Parser:
    """The parser of one verb, with the flags that every verb has."""
    parser = Parser(name, description=verb.HELP)
    verb.configure(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    return parser

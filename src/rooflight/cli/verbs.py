"""The verbs: a module of a folder here each, with `HELP`, `configure(parser)`, `run(args) -> int`.

A module is imported only when its verb is used, because `rooflight --help` must start about as
fast as the interpreter itself; so what the overview says of each stands here.
"""

from importlib import import_module
from typing import Protocol, cast

from rooflight.cli.parser import Namespace, Parser
from rooflight.errors import UnknownNameError, UsageError

OVERVIEW = {
    "hardware": {
        "chips, slice, shard": "the catalog; a slice and its mesh; who has what",
        "roofline, intensity": "what bounds matmuls, or your own JAX function",
        "collective, matmul": "seconds of one collective, of a sharded matmul",
    },
    "plan": {
        "model, mfu, budget": "parameters, FLOPs; utilisation; days, dollars",
        "plan train|serve": "the fastest layouts that fit; the best fleet",
        "fit train|serve": "what a chip holds, and whether it fits",
        "explain train|serve": "the collectives and matmuls of a layer",
        "forecast, pipeline": "the step of your own layout; pipeline bubbles",
        "frontier, simulate": "latency against cost; requests, simulated",
    },
    "program": {
        "verify, hlo": "compiled without a chip: what is odd; XLA dumps",
        "export, import": "settings of MaxText, Megatron-LM, vLLM, ...",
    },
    "run": {
        "tokens, train, launch": "text as tokens; a plan as a run; on many hosts",
        "ckpt, serve, route": "checkpoints; OpenAI's API; a router before it",
    },
    "measure": {
        "bench, profile": "load on a server; a trace: where time went",
        "reconcile, measure": "a run beside its plan; this machine as a chip",
        "validate, calibrate": "published runs; constants fitted to them",
        "contribute, tune": "your own run as a row; a server's best settings",
    },
    "learn": {
        "explore, book": "answers in a browser; the book's problems",
        "doctor, completion": "what this machine can do; for bash, zsh, fish",
    },
}
_GROUPS = {v.split()[0]: g for g, rows in OVERVIEW.items() for r in rows for v in r.split(", ")}
VERBS = [*_GROUPS]
TWO_WORDS = {
    "plan train": "plan",
    "plan serve": "plan_serve",
    "fit train": "fit",
    "fit serve": "fit_serve",
    "explain train": "explain",
    "explain serve": "explain_serve",
}
KINDS = ("train", "serve")  # the second words
_FOLDERS = {"plan": "planning", "run": "running", "measure": "measuring", "learn": "learning"}
_SERVING = {"plan_serve", "fit_serve", "explain_serve", "frontier", "simulate"}


def verb_names() -> list[str]:
    """Every command: verbs of one word, and each of two words."""
    pairs = {verb: [f"{verb} {kind}" for kind in KINDS] for verb in VERBS if has_kinds(verb)}
    return [name for verb in VERBS for name in pairs.get(verb, [verb])]


class Verb(Protocol):
    """What the frame needs of a verb's module."""

    HELP: str

    def configure(self, parser: Parser) -> None: ...
    def run(self, args: Namespace) -> int: ...


_POLICY = {"--policy separated": "disaggregated"}
_STEP = {"--patience": "--step-timeout"}
_RENAMED = {
    "serve": {**_STEP, "--drafts": "--draft-tokens"},
    "launch": {**_STEP, "--start-patience": "--start-timeout"},
    **dict.fromkeys(("simulate", "plan"), _POLICY),
    "frontier": {"--bound products": "matmuls"},
}


def split_verb(words: list[str]) -> tuple[str, list[str]]:
    """The verb, of one word or two, and the words after it.

    >>> split_verb(["plan", "serve", "llama3-8b"])
    ('plan serve', ['llama3-8b'])
    """
    count = 2 if " ".join(words[:2]) in TWO_WORDS else 1
    return " ".join(words[:count]), words[count:]


def _renamed(verb: str, words: list[str]) -> tuple[list[str], str]:
    """Flags and values that had other names before 0.2, with a note of the first."""
    table, found = _RENAMED.get(verb, {}), list(words)
    for i, word in enumerate(words):
        flag, equals, value = word.partition("=")
        if flag.startswith("--"):
            found[i] = table.get(flag, flag) + equals + table.get(f"{flag} {value}", value)
        elif i:
            found[i] = table.get(f"{words[i - 1]} {word}", word)
    old = [
        f"{word}`; 0.2 says `{now}" for word, now in zip(words, found, strict=True) if word != now
    ]
    return found, f"note: `{old[0]}`" if old else ""


def respelt(words: list[str]) -> tuple[list[str], str]:
    """A line as it was written before 0.2, as it is written now, with a note that says so.

    >>> respelt(["fit", "llama3-8b", "--serve", "--seq", "4k"])[0]
    ['fit', 'serve', 'llama3-8b', '--seq', '4k']
    """
    verb, *rest = words
    rest, note = _renamed(verb, rest)
    if note:
        return [verb, *rest], note
    is_plan = verb == "plan" and "train" in rest  # behind flags
    is_old = verb in ("fit", "explain") or is_plan
    if not is_old or not rest or rest[0] in (*KINDS, "-h", "--help"):
        return words, ""
    is_served = any(word.partition("=")[0] == "--serve" for word in rest)
    if is_plan:
        rest.remove("train")
    elif verb == "fit":
        rest = [word for word in rest if word != "--serve"]
    else:
        rest = [word.replace("--serve", "--phase") for word in rest]
    kind = "serve" if is_served else "train"
    return [verb, kind, *rest], f"note: write `rooflight {verb} {kind} ...`; 0.2 asks for the word"


def load_verb(name: str) -> Verb:
    """Imports a verb's module; unknown names get a did-you-mean."""
    if name not in TWO_WORDS and name not in VERBS:
        raise UnknownNameError("verb", name, VERBS)
    if has_kinds(name):
        raise UsageError(
            f"train or serve comes right after {name}",
            hint=f"`rooflight {name} train --help`, or `rooflight {name} serve --help`",
        )
    return cast(Verb, import_module(verb_module(name)))


def verb_module(name: str) -> str:
    """The module of a command: in the folder of its group, those of serving by themselves.

    >>> verb_module("plan train"), verb_module("plan serve"), verb_module("hlo")
    ('rooflight.cli.planning.plan', 'rooflight.cli.serving.plan_serve', 'rooflight.cli.program.hlo')
    """
    module, group = TWO_WORDS.get(name, name), _GROUPS[name.split()[0]]
    folder = "serving" if module in _SERVING else _FOLDERS.get(group, group)
    return f"rooflight.cli.{folder}.{module}"


def has_kinds(name: str) -> bool:
    """Whether a second word is needed."""
    return f"{name} {KINDS[0]}" in TWO_WORDS


def verb_parser(name: str, verb: Verb) -> Parser:
    """The parser of one verb, with the flags that every verb has."""
    parser = Parser(name, description=verb.HELP)
    verb.configure(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    return parser

"""`rooflight completion`: a script for the shell, and the words it asks for.

The script calls back `rooflight --complete-words WORD...` with the words typed so far, the last
one unfinished; the answer is one candidate a line, read off the verbs' own parsers.
"""

from collections.abc import Callable, Iterable, Sequence
from importlib.resources import files
from typing import cast

from rooflight.cli.flags import add_choice
from rooflight.cli.output import print_json
from rooflight.cli.parser import Namespace, Parser
from rooflight.cli.verbs import KINDS, VERBS, has_kinds, load_verb, split_verb, verb_parser

HELP = "a completion script for bash, zsh or fish"

# Bash cuts words at `:` and `=`, so `v5e:4` and `--on=v5` arrive in pieces: its script cuts the
# line at blanks instead, and removes from the answers what bash took for earlier words.
_SHELLS = ("bash", "zsh", "fish")


def configure(parser: Parser) -> None:
    add_choice(parser, "shell", _SHELLS, what="shell", default=None, help="bash, zsh or fish")
    parser.set_examples("rooflight completion bash", "rooflight completion zsh")


def run(args: Namespace) -> int:
    script = (
        (files("rooflight.cli.learning") / f"completion.{args.shell}")
        .read_text("utf-8")
        .rstrip("\n")
    )
    if args.json:
        print_json("completion", {"shell": args.shell, "script": script})
    else:
        print(script)
    return 0


def candidates(words: Sequence[str]) -> list[str]:
    """What the last, unfinished word may become.

    >>> candidates(["com"])
    ['completion']
    >>> candidates(["roofline", "--memory", "v"]), candidates(["fit", "s"])
    (['vmem'], ['serve'])
    """
    *before, word = words or [""]
    if not before:
        return _starting_with(word, [*VERBS, "--help", "--version"])
    if before[0] not in VERBS:
        return []
    name, typed = split_verb(before)
    if has_kinds(name):
        return [] if typed else _starting_with(word, [*KINDS, "--help"])
    parser = verb_parser(name, load_verb(name))
    flag, equals, part = word.partition("=")
    if equals:
        return [f"{flag}={value}" for value in _starting_with(part, _flag_values(parser, flag))]
    if _takes_value(parser, before[-1]):
        return _starting_with(word, _flag_values(parser, before[-1]))
    if word.startswith("-"):
        return _starting_with(word, parser.flags())
    return _starting_with(word, _positional_values(parser, typed))


def _starting_with(start: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(start)]


def _takes_value(parser: Parser, word: str) -> bool:
    action = parser.flags().get(word)
    return action is not None and action.nargs != 0


def _flag_values(parser: Parser, flag: str) -> Iterable[str]:
    action = parser.flags().get(flag)
    return () if action is None else _values(action.dest, action.choices)


def _positional_values(parser: Parser, words: Sequence[str]) -> Iterable[str]:
    """Values of the positional the cursor is at: those before it are words that no flag takes."""
    flagged = [_takes_value(parser, word) for word in ("", *words)]
    given = [w for w, taken in zip(words, flagged, strict=False) if not taken and w[:1] != "-"]
    slots = parser.positionals()
    if len(given) >= len(slots):
        return ()
    slot = slots[len(given)]
    return _values(slot.dest, slot.choices)


def _values(dest: str, choices: Iterable[object] | None) -> Iterable[str]:
    if choices is not None:
        return cast(Iterable[str], choices)
    catalogs: dict[str, Callable[[], Iterable[str]]] = {
        "on": _chips,
        "chip": _chips,
        "slice": _chips,
        "dtype": _dtypes,
        "model": _models,
    }
    return catalogs[dest]() if dest in catalogs else ()


def _chips() -> Iterable[str]:
    from rooflight.hardware.catalog import chip_names

    return chip_names()


def _models() -> Iterable[str]:
    from rooflight.models.presets import model_names

    return model_names()


def _dtypes() -> Iterable[str]:
    from rooflight.dtypes import DTYPES

    return DTYPES

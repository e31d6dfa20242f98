"""The `rooflight` command: finds the verb, runs it, turns every failure into words and a code.

Exit 0 good, 1 a finding, 2 usage, 70 a bug of ours, 130 interrupted. A verb is one module of this
folder with `HELP`, `configure(parser)` and `run(args) -> int`; it is imported only when used,
because `rooflight --help` must start about as fast as the interpreter itself.
"""

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Protocol, cast

from rooflight import __version__
from rooflight.cli.parser import Namespace, Parser
from rooflight.errors import RooflightError, UnknownNameError

VERBS = {
    "chips": "the hardware catalog: every chip, or every fact of one chip with its source",
    "slice": "a slice of chips: hosts, wraparound, totals, and how a mesh lies on it",
    "roofline": "ridge point, critical batch and log-log plot of a chip; matmuls as points on it",
    "collective": "seconds of one collective on a slice, and what binds it",
    "matmul": "a sharded matmul: derived steps, time of each, and the alternatives that lost",
    "shard": "a picture of which device holds what of an array",
    "book": "worked problems of the book, line by line, against its printed answers",
    "completion": "a completion script for bash, zsh or fish",
}

_BUG_EXIT_CODE = 70  # EX_SOFTWARE of sysexits.h


class Verb(Protocol):
    """What the frame needs of a verb's module."""

    HELP: str

    def configure(self, parser: Parser) -> None: ...
    def run(self, args: Namespace) -> int: ...


def entry() -> None:
    """The console script."""
    sys.exit(main(sys.argv[1:]))


def main(argv: Sequence[str]) -> int:
    """Runs one command line and returns its exit code; never raises.

    >>> main(["--version"])
    rooflight 0.1.0
    0
    """
    try:
        code = _dispatch(list(argv))
        sys.stdout.flush()
        return code
    except RooflightError as error:
        print(error.render(), file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        # The reader has seen enough (`| head`); a second flush at exit would complain again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130
    except Exception as error:  # the last line of the program: a bug still ends in words
        return _report_bug(error)


def _dispatch(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help"):
        print(_overview())
        return 0
    if argv[0] == "--version":
        print(f"rooflight {__version__}")
        return 0
    if argv[0] == "--complete-words":
        from rooflight.cli.completion import candidates

        print("\n".join(candidates(argv[1:])))
        return 0
    name, words = argv[0], argv[1:]
    if name.startswith("-"):
        raise _misplaced_flag(name)
    verb = load_verb(name)
    args = verb_parser(name, verb).parse(words)
    return 0 if args is None else verb.run(args)


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


def _overview() -> str:
    verbs = "\n".join(f"  {name:<11} {text}" for name, text in VERBS.items())
    return f"""\
usage: rooflight VERB [options]

How fast can it be, and what binds it: rooflines, collectives and sharded matmuls on real slices.

verbs:
{verbs}

options:
  -h, --help  this text; `rooflight VERB --help` for one verb
  --version   the version

start with: rooflight slice v5e:4x4"""


def _misplaced_flag(flag: str) -> RooflightError:
    return UnknownNameError(
        "flag", flag, (), hint="flags follow their verb, as in `rooflight chips --json`"
    )


def _report_bug(error: Exception) -> int:
    if os.environ.get("ROOFLIGHT_DEBUG"):
        import traceback

        traceback.print_exc()
    bug = RooflightError(
        f"internal {type(error).__name__}: {error}",
        hint="this is a bug of rooflight; report it with the output of the same command"
        " run with ROOFLIGHT_DEBUG=1",
    )
    print(bug.render(), file=sys.stderr)
    return _BUG_EXIT_CODE

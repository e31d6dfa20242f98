"""The `rooflight` command: finds the verb, runs it, turns every failure into words and a code.

Exit 0 good, 1 a finding, 2 usage, 70 a bug of ours, 130 interrupted.
"""

import os
import sys
from collections.abc import Sequence

from rooflight import __version__
from rooflight.cli.verbs import (
    KINDS,
    OVERVIEW,
    has_kinds,
    load_verb,
    respelt,
    split_verb,
    verb_parser,
)
from rooflight.errors import RooflightError, UnknownNameError

_BUG_EXIT_CODE = 70  # EX_SOFTWARE of sysexits.h


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
        from rooflight.cli.learning.completion import candidates

        print("\n".join(candidates(argv[1:])))
        return 0
    argv, note = respelt(argv)
    name, words = split_verb(argv)
    if name.startswith("-"):
        raise _misplaced_flag(name)
    if has_kinds(name) and words and words[0] in ("-h", "--help"):
        print(_kinds(name))
        return 0
    verb = load_verb(name)
    args = verb_parser(name, verb).parse(words)
    code = 0 if args is None else verb.run(args)
    if note:
        print(note, file=sys.stderr)
    return code


def _overview() -> str:
    rows = [
        f"{'' if i else group:<9} {verbs:<22} {text}"
        for group, rows in OVERVIEW.items()
        for i, (verbs, text) in enumerate(rows.items())
    ]
    return "\n".join(
        (
            "usage: rooflight VERB [options]   (--help after a verb; --version)",
            "",
            *rows,
            "",
            "start with: rooflight slice v5e:4x4",
        )
    )


def _kinds(name: str) -> str:
    rows = [f"  rooflight {name} {kind}  {load_verb(f'{name} {kind}').HELP}" for kind in KINDS]
    return f"usage: rooflight {name} train|serve MODEL [options]\n\n" + "\n".join(rows)


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

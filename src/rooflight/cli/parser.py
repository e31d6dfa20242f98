"""`Parser`: argparse that raises our errors, with a did-you-mean for flags.

In: the words after the verb. Out: a namespace, or None when `--help` was the answer.
"""

import argparse
from collections.abc import Sequence
from typing import NoReturn

from rooflight.errors import UnknownNameError, UsageError

Namespace = argparse.Namespace

_WIDTH = 96  # fixed, so help reads the same in a pipe; asking the terminal imports shutil (slow)


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Help that keeps the line breaks of the examples."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=30, width=_WIDTH)


class Parser(argparse.ArgumentParser):
    """The parser of one verb; `examples` are commands that work as typed."""

    def __init__(self, verb: str, *, description: str) -> None:
        super().__init__(
            prog=f"rooflight {verb}",
            description=f"{description[0].upper()}{description[1:]}.",
            formatter_class=_HelpFormatter,
            allow_abbrev=False,
            add_help=False,
        )
        self.examples: tuple[str, ...] = ()
        self.add_argument("-h", "--help", action="store_true", help="print this text")

    def set_examples(self, *commands: str) -> None:
        """Commands shown at the end of `--help`; the first is the hint of a usage error."""
        self.examples = commands
        self.epilog = "examples:\n" + "\n".join(f"  {command}" for command in commands)

    def parse(self, words: Sequence[str]) -> Namespace | None:
        """Reads the words of a verb; prints the help and returns None if they ask for it."""
        options = words[: words.index("--")] if "--" in words else words
        if "-h" in options or "--help" in options:
            self.print_help()
            return None
        self._check_flags(options)
        args, unknown = self.parse_known_args(words)
        if unknown:
            self.error(f"does not know what to do with {unknown[0]!r}")
        return args

    def flags(self) -> dict[str, argparse.Action]:
        """Every flag as typed (`--json`, `-v`) with what it does."""
        return {flag: action for action in self._actions for flag in action.option_strings}

    def positionals(self) -> list[argparse.Action]:
        """What stands without a flag, in order."""
        return [action for action in self._actions if not action.option_strings]

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"`{self.prog}`: {message}", hint=self._hint())

    def _hint(self) -> str:
        return f"for instance `{self.examples[0] if self.examples else self.prog + ' --help'}`"

    def _check_flags(self, words: Sequence[str]) -> None:
        """Before argparse, which would first complain of the required flag that was misspelt."""
        for word in words:
            flag = word.split("=")[0]
            if flag.startswith("--") and " " not in word and flag not in self.flags():
                known = [name for name in self.flags() if name.startswith("--")]
                raise UnknownNameError(f"flag of `{self.prog}`", flag, known)

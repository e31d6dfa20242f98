"""Runs the command line in this process and keeps what it wrote."""

import contextlib
import io
from collections.abc import Sequence
from dataclasses import dataclass

from rooflight.cli.main import main


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a command left behind."""

    code: int
    out: str
    err: str


def run(argv: Sequence[str]) -> Outcome:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(argv)
    return Outcome(code, out.getvalue(), err.getvalue())

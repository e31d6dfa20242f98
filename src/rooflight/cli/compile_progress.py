"""A line on stderr while the compiler works, for a person who has waited a second."""

import sys
from collections.abc import Generator
from contextlib import contextmanager

from rooflight.compile.aot.run import Watch

_PATIENCE_S = 1.0


@contextmanager
def compile_progress() -> Generator[Watch]:
    """Hands out a function that shows what the first compile does; the line is gone in the end."""
    drawn = False

    def watch(which: int, phase: str, seconds: float) -> None:
        nonlocal drawn
        if which or not sys.stderr.isatty() or seconds < _PATIENCE_S:
            return
        drawn = True
        print(f"\r\x1b[K{phase}, {seconds:.0f} s", end="", file=sys.stderr, flush=True)

    try:
        yield watch
    finally:
        if drawn:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

"""A progress line on stderr, for a person who has waited a second."""

import sys
import time
from collections.abc import Generator
from contextlib import contextmanager

from rooflight.plan.training.search.run import Watch
from rooflight.units import format_count

_PATIENCE_S = 1.0
_WIDTH = 30


@contextmanager
def progress(units: str, counted: str) -> Generator[Watch]:
    """Hands out a function that draws how far a search is; the line is gone in the end."""
    start = time.monotonic()
    drawn = False

    def watch(done: int, total: int, count: int) -> None:
        nonlocal drawn
        if not sys.stderr.isatty() or time.monotonic() - start < _PATIENCE_S:
            return
        drawn = True
        bar = "#" * (_WIDTH * done // total)
        text = f"[{bar:<{_WIDTH}}] {done} of {total} {units}, {format_count(count)} {counted}"
        print(f"\r{text}", end="", file=sys.stderr, flush=True)

    try:
        yield watch
    finally:
        if drawn:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

"""A progress line on stderr, for a person who has waited a second."""

import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from rooflight.plan.training.search.run import Watch
from rooflight.units import format_count

PATIENCE_S = 1.0
_WIDTH = 30


@contextmanager
def drawn_line() -> Generator[Callable[[str], None]]:
    """Hands out a function that writes over one line of a terminal; it is gone in the end."""
    is_drawn = False

    def draw(text: str) -> None:
        nonlocal is_drawn
        if sys.stderr.isatty():
            is_drawn = True
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)

    try:
        yield draw
    finally:
        if is_drawn:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


@contextmanager
def progress(units: str, counted: str) -> Generator[Watch]:
    """Hands out a function that draws how far a search is."""
    start = time.monotonic()
    with drawn_line() as draw:

        def watch(done: int, total: int, count: int) -> None:
            if time.monotonic() - start >= PATIENCE_S:
                bar = "#" * (_WIDTH * done // total)
                done_so_far = f"{done} of {total} {units}, {format_count(count)} {counted}"
                draw(f"[{bar:<{_WIDTH}}] {done_so_far}")

        yield watch

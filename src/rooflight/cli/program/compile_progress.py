"""A line on stderr while the compiler works, for a person who has waited a second."""

from collections.abc import Generator
from contextlib import contextmanager

from rooflight.cli.progress import PATIENCE_S, drawn_line
from rooflight.compile.aot.run import Watch


@contextmanager
def compile_progress() -> Generator[Watch]:
    """Hands out a function that shows what the last compile does, which goes the furthest."""
    last = 0
    with drawn_line() as draw:

        def watch(which: int, phase: str, seconds: float) -> None:
            nonlocal last
            last = max(last, which)
            if which == last and seconds >= PATIENCE_S:
                draw(f"{phase}, {seconds:.0f} s")

        yield watch

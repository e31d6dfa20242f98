"""Which files a thing passes on its way, recorded by a profiler hook.

A walk is the files of the package on the stack, outermost first, when a goal is called: a function
that makes or takes the thing. A file counts once while its functions call each other, and again if
it is left and entered again.
"""

import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import rooflight

_SOURCE = f"{Path(rooflight.__file__).parent}/"
Walk = tuple[str, ...]
Goal = Callable[..., Any]


@contextmanager
def recorded(*goals: Goal) -> Generator[Sequence[set[Walk]]]:
    """The walks to each goal, of this thread and of those that start in the block."""
    found: defaultdict[CodeType, set[Walk]] = defaultdict(set)
    codes: list[CodeType] = [getattr(goal, "__code__") for goal in goals]  # noqa: B009

    def hook(frame: FrameType, event: str, arg: object) -> None:
        if event == "call" and frame.f_code in codes:
            found[frame.f_code].add(merged(reversed([*_files(frame)])))

    threading.setprofile(hook)
    sys.setprofile(hook)
    try:
        yield [found[code] for code in codes]
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def _files(frame: FrameType | None) -> Iterator[str]:
    """Innermost first; what is generated, such as the `__init__` of a record, has none."""
    while frame is not None:
        if frame.f_code.co_filename.startswith(_SOURCE):
            yield frame.f_code.co_filename.removeprefix(_SOURCE)
        frame = frame.f_back


def merged(files: Iterable[str]) -> Walk:
    """Without the steps from a file to itself."""
    found: list[str] = []
    for file in files:
        if found[-1:] != [file]:
            found.append(file)
    return tuple(found)


def joined(first: Walk, then: Walk) -> Walk:
    """One walk, then on from where it parts from another."""
    pairs = zip(first, then, strict=False)
    common = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(first), len(then)))
    return merged((*first, *then[common:]))


def returned(walk: Walk) -> list[str]:
    """Files that are left and entered again."""
    return sorted({file for file in walk if walk.count(file) > 1})

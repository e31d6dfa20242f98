"""Seconds of a jitted function on this machine.

A machine that does other things only ever adds to a time, so the fastest of several rounds is
the function's own; what is compared is run in turn, so that a slow minute meets all alike.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any  # jitted functions of any signature

import jax

Call = tuple[Callable[..., Any], tuple[Any, ...]]


def fastest(calls: Mapping[str, Call], *, rounds: int) -> dict[str, float]:
    """The fewest seconds of each call over `rounds`, all in turn, after one that compiles."""
    seconds = {name: float("inf") for name in calls}
    for turn in range(rounds + 1):
        for name, (function, arguments) in calls.items():
            begin = time.perf_counter()
            jax.block_until_ready(function(*arguments))
            if turn:
                seconds[name] = min(seconds[name], time.perf_counter() - begin)
    return seconds

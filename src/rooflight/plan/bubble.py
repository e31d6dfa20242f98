"""How long a device of a pipeline idles, as a closed form of its slots' times.

In: a schedule by name and the seconds of one microbatch's forward (F), input gradient (B) and
weight gradient (W) on the slowest stage, as floats or as numpy arrays. Out: seconds. The tables of
`graph.schedules` are the truth: tests hold each form against their simulation.

    1f1b, gpipe    (S - 1) (F + B + W)
    interleaved    (S - 1) (F + B + W) / v                M a multiple of S
    zb-h1          (S - 1) max(F + B - W, F, B)           no W longer than F or B
    dualpipe       (S/2 - 1) (F + 2 B - W)                S even, at least 4; M >= 2 S; F = B >= W

Outside their conditions the last two are estimates. Zero-bubble V has no closed form for unequal
times; simulate it (`rooflight pipeline`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rooflight.plan.job import Microbatching
from rooflight.plan.pipeline import SlotTimes, simulate_pipeline
from rooflight.plan.stages import schedule_table

Seconds = Any  # a float or an array of them: only sums, products and maxima are taken


@dataclass(frozen=True, slots=True)
class _Form:
    """The idle seconds, and the pipelines on which a table exists."""

    idle: Callable[[Any, int, Seconds, Seconds, Seconds], Seconds]  # stages may be an array too
    allows: Callable[[int, int], bool]  # stages, microbatches


def _larger(a: Seconds, b: Seconds) -> Seconds:
    """The larger of each pair; exact for floats and arrays alike."""
    return (a >= b) * a + (a < b) * b


BUBBLES: Mapping[str, _Form] = {
    "1f1b": _Form(lambda s, v, f, b, w: (s - 1) * (f + b + w), lambda s, m: True),
    "gpipe": _Form(lambda s, v, f, b, w: (s - 1) * (f + b + w), lambda s, m: True),
    "interleaved": _Form(lambda s, v, f, b, w: (s - 1) * (f + b + w) / v, lambda s, m: m % s == 0),
    "zb-h1": _Form(
        lambda s, v, f, b, w: (s - 1) * _larger(f + b - w, _larger(f, b)), lambda s, m: m >= s
    ),
    "dualpipe": _Form(
        lambda s, v, f, b, w: (s / 2 - 1) * _larger(f + 2 * b - w, 0 * f),
        lambda s, m: s % 2 == 0 and s >= 4 and m % 2 == 0 and m >= 2 * s,
    ),
}


def idle_seconds(
    micro: Microbatching, stages: int, forward_s: float, input_s: float, weight_s: float
) -> float:
    """The bubble of one step; a schedule without a closed form is simulated."""
    if stages == 1:
        return 0.0
    form = BUBBLES.get(micro.schedule)
    if form and form.allows(stages, micro.count):
        return form.idle(stages, micro.virtual, forward_s, input_s, weight_s)
    table = schedule_table(
        micro.schedule, stages=stages, microbatches=micro.count, virtual=micro.virtual
    )
    return simulate_pipeline(table, SlotTimes(forward_s, input_s, weight_s)).bubble_s

"""How long a device of a pipeline idles, as a closed form of its slots' times.

In: a schedule by name and the seconds of one microbatch's forward (F), input gradient (B) and
weight gradient (W) on the slowest stage, as floats or as numpy arrays. Out: seconds. The tables of
`models.layout.schedules` are the truth: tests hold each form against their simulation.

As published, where each device runs its own slots and nothing else (`BUBBLES`):

    1f1b, gpipe    (S - 1) (F + B + W)
    interleaved    (S - 1) (F + B + W) / v                M // S divides M
    zb-h1          (S - 1) max(F + B - W, F, B)           no W longer than F or B
    dualpipe       (S/2 - 1) (F + 2 B - W)                S even, at least 4; M >= 2 S; F = B >= W

Outside their conditions the last two are estimates. Zero-bubble V has no closed form for unequal
times; simulate it (`rooflight pipeline`).

In our own program, whose devices run in lock step (`layout.in_step`), each table of the first four
rows idles for (S - 2) F / v + (S - 1) (B + W) / v: this is what a plan is priced with.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rooflight.models.layout.in_step import in_step
from rooflight.plan.training.memory.job import Microbatching
from rooflight.plan.training.time.stages import schedule_table

Seconds = Any  # a float or an array of them: only sums, matmuls and maxima are taken


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
    "interleaved": _Form(
        lambda s, v, f, b, w: (s - 1) * (f + b + w) / v, lambda s, m: m >= s and m % (m // s) == 0
    ),
    "zb-h1": _Form(
        lambda s, v, f, b, w: (s - 1) * _larger(f + b - w, _larger(f, b)), lambda s, m: m >= s
    ),
    "dualpipe": _Form(
        lambda s, v, f, b, w: (s / 2 - 1) * _larger(f + 2 * b - w, 0 * f),
        lambda s, m: s % 2 == 0 and s >= 4 and m % 2 == 0 and m >= 2 * s,
    ),
}


IN_STEP = ("1f1b", "gpipe", "interleaved", "zb-h1")  # whose rounds have a closed form


def idle_rounds(stages: Any) -> tuple[Any, Any]:
    """Rounds of a lock step beyond the M v that have work for a device: forward, backward."""
    return stages - 2, stages - 1


def seconds_of(forward: Any, backward: Any, virtual: int, slots_s: Sequence[Seconds]) -> Seconds:
    """So many rounds, of one chunk of a stage each, in seconds of the slots of a microbatch."""
    forward_s, input_s, weight_s = slots_s
    return (forward * forward_s + backward * (input_s + weight_s)) / virtual


def idle_seconds(micro: Microbatching, stages: int, *slots_s: float) -> float:
    """The bubble of one step of our own program; F, B and W of one microbatch are given."""
    if stages == 1:
        return 0.0
    if has_form(micro, stages):
        return seconds_of(*idle_rounds(stages), micro.virtual, slots_s)
    table = schedule_table(
        micro.schedule, stages=stages, microbatches=micro.count, virtual=micro.virtual
    )
    forward, backward = (n - micro.count * micro.virtual for n in in_step(table).rounds)
    return seconds_of(forward, backward, micro.virtual, slots_s)


def published_idle_seconds(micro: Microbatching, stages: int, *slots_s: float) -> float:
    """The bubble where each device runs its own slots and nothing else."""
    if stages == 1:
        return 0.0
    form = BUBBLES.get(micro.schedule, BUBBLES["1f1b"])
    return float(form.idle(stages, micro.virtual, *slots_s))


def has_form(micro: Microbatching, stages: int) -> bool:
    """Whether the rounds of the table are those of the closed form."""
    return micro.schedule in IN_STEP and BUBBLES[micro.schedule].allows(stages, micro.count)

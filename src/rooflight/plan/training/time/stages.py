"""Pipeline stages: which layers each one holds, and how many microbatches wait in it.

In: the blocks of all layers in order, a schedule by name, its sizes. Out: counts. What waits is
read off the tables of `models.layout.schedules`, save for the two whose closed form is well known.

A chunk is a run of layers that lie together: a stage has `virtual` of them, or two of the same
size where a schedule sends microbatches both ways (dualpipe).

How long a device of a pipeline idles, as a closed form of the seconds of one microbatch's forward
(F), input gradient (B) and weight gradient (W) on the slowest stage, as floats or numpy arrays. The
tables of `models.layout.schedules` are the truth: tests hold each form against their simulation.

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

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, TypeVar

from rooflight.models.layout.in_step import in_step
from rooflight.models.layout.schedules import group_size, interleaved, make_schedule
from rooflight.models.layout.slots import Schedule, Slot, groups
from rooflight.models.layout.staging import cut_layers
from rooflight.plan.training.memory.job import Microbatching

Seconds = Any  # a float or an array of them: only sums, matmuls and maxima are taken

Layer = TypeVar("Layer", bound=Hashable)
Waiting = tuple[int, ...]  # microbatches that wait in each chunk of one stage


def stage_layers(
    layers_in_order: Sequence[Layer], stages: int, virtual: int = 1, *, schedule: str = "1f1b"
) -> tuple[Counter[Layer], ...]:
    """How many layers of each kind every stage holds.

    >>> [dict(held) for held in stage_layers("aaaabbb", 2)]
    [{'a': 4}, {'b': 3}]
    >>> [dict(held) for held in stage_layers("aaaabbb", 2, 2, schedule="interleaved")]
    [{'a': 2, 'b': 2}, {'a': 2, 'b': 1}]
    """
    places = stage_chunks(schedule, stages, virtual)
    chunks = chunk_layers(layers_in_order, num_chunks(places))
    return tuple(Counter(layer for c in held for layer in chunks[c]) for held in places)


def chunk_layers(layers_in_order: Sequence[Layer], count: int) -> list[Sequence[Layer]]:
    """Cuts layers into runs that differ by at most one; the larger first: the last has the head."""
    cut = cut_layers(len(layers_in_order), count)
    return [layers_in_order[chunk.start : chunk.stop] for chunk in cut]


def chunk_by_flops(
    layers_in_order: Sequence[Layer], count: int, *, head: Fraction | int
) -> list[Sequence[Layer]]:
    """Cuts where the running cost passes an equal share; the head costs as much as `head` layers.

    >>> [len(chunk) for chunk in chunk_by_flops("aaaaaaaa", 2, head=2)]
    [6, 2]
    """
    share = Fraction(len(layers_in_order) + head, count)
    chunks: list[list[Layer]] = [[]]
    for done, layer in enumerate(layers_in_order, start=1):
        chunks[-1].append(layer)
        if done > share * len(chunks):
            chunks.append([])
    return [*chunks, *([] for _ in range(count - len(chunks)))]


def num_chunks(places: Iterable[Iterable[int]]) -> int:
    return 1 + max(chunk for held in places for chunk in held)


def stage_chunks(schedule: str, stages: int, virtual: int) -> tuple[tuple[int, ...], ...]:
    """The chunks of every stage, in order: chunk c on stage c mod S, or there and back.

    In closed form, since a search asks for many; a test reads the same off the tables.

    >>> stage_chunks("zb-v", 2, 2), stage_chunks("dualpipe", 2, 1)
    (((0, 3), (1, 2)), ((0, 1), (0, 1)))
    """
    if schedule in ("zb-v", "dualpipe"):
        last = stages * virtual - 1
        return tuple(tuple(sorted({s, last - s})) for s in range(stages))
    return tuple(tuple(range(s, stages * virtual, stages)) for s in range(stages))


def schedule_table(schedule: str, *, stages: int, microbatches: int, virtual: int) -> Schedule:
    """The table of a schedule; only interleaved is free in its virtual stages."""
    wanted = virtual if schedule == "interleaved" else None
    return make_schedule(schedule, stages=stages, microbatches=microbatches, virtual=wanted)


def in_flight(
    schedule: str, *, stages: int, microbatches: int, virtual: int = 1
) -> tuple[tuple[Waiting, ...], ...]:
    """For every stage, the fullest moments: microbatches that wait in each of its chunks.

    A microbatch waits from the start of its forward to the end of its weight gradient. Of two
    moments one may hold more of the first chunk and the other more of the second; both are
    given, and the bytes decide. 1f1b: min(M, S - s); gpipe: M; one stage: one microbatch.

    >>> in_flight("1f1b", stages=4, microbatches=8)
    (((4,),), ((3,),), ((2,),), ((1,),))
    """
    if stages == 1:
        return (((1,) * virtual,),)
    if schedule == "gpipe":
        return (((microbatches,),),) * stages
    if schedule == "1f1b":
        return tuple(((min(microbatches, stages - s),),) for s in range(stages))
    # Warm-up is over after two groups in every table; more of them only repeat its middle.
    group = group_size(stages, microbatches) if schedule == "interleaved" else stages
    return _from_table(schedule, stages, min(microbatches, 4 * group), virtual, group)


@lru_cache(maxsize=256)
def _from_table(
    schedule: str, stages: int, microbatches: int, virtual: int, group: int
) -> tuple[tuple[Waiting, ...], ...]:
    if schedule == "interleaved":
        table = interleaved(stages=stages, microbatches=microbatches, virtual=virtual, group=group)
    else:
        table = schedule_table(schedule, stages=stages, microbatches=microbatches, virtual=virtual)
    places = stage_chunks(schedule, stages, virtual)
    return tuple(
        _fullest(_moments(slots, held)) for slots, held in zip(table.devices, places, strict=True)
    )


def _moments(slots: tuple[Slot, ...], chunks: Sequence[int]) -> Iterator[Waiting]:
    """What waits before anything is let go; a group's forwards begin before its other work ends."""
    waiting = dict.fromkeys(chunks, 0)
    for group in groups(slots):
        for slot in group:
            waiting[slot.stage] += slot.kind == "F"
        ends = [slot.stage for slot in group if "W" in slot.kind]
        if ends:
            yield tuple(waiting.values())
        for stage in ends:
            waiting[stage] -= 1


def _fullest(moments: Iterator[Waiting]) -> tuple[Waiting, ...]:
    """The moments that no other one covers."""
    distinct = sorted(set(moments), reverse=True)
    return tuple(
        one
        for one in distinct
        if not any(_covers(other, one) for other in distinct if other != one)
    )


def _covers(larger: Waiting, smaller: Waiting) -> bool:
    return all(a >= b for a, b in zip(larger, smaller, strict=True))


@dataclass(frozen=True, slots=True)
class _Bubble:
    """The idle seconds, and the pipelines on which a table exists."""

    idle: Callable[[Any, int, Seconds, Seconds, Seconds], Seconds]  # stages may be an array too
    allows: Callable[[int, int], bool]  # stages, microbatches


def _larger(a: Seconds, b: Seconds) -> Seconds:
    """The larger of each pair; exact for floats and arrays alike."""
    return (a >= b) * a + (a < b) * b


BUBBLES: Mapping[str, _Bubble] = {
    "1f1b": _Bubble(lambda s, v, f, b, w: (s - 1) * (f + b + w), lambda s, m: True),
    "gpipe": _Bubble(lambda s, v, f, b, w: (s - 1) * (f + b + w), lambda s, m: True),
    "interleaved": _Bubble(
        lambda s, v, f, b, w: (s - 1) * (f + b + w) / v, lambda s, m: m >= s and m % (m // s) == 0
    ),
    "zb-h1": _Bubble(
        lambda s, v, f, b, w: (s - 1) * _larger(f + b - w, _larger(f, b)), lambda s, m: m >= s
    ),
    "dualpipe": _Bubble(
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

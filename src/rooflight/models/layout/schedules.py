"""The published pipeline schedules as pure functions from sizes to a `Schedule`.

A device's table is a list of phases, each a short pattern done a number of times. In a pattern
`F`, `B`, `W` and `BW` take the next microbatch of their kind, a number picks the lane (one of
two virtual stages or directions), and `&` joins two slots into one.

S stages (devices), M microbatches, v virtual stages per device, d the device.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, cast

from rooflight.errors import UnknownNameError, UsageError
from rooflight.models.layout.slots import Schedule, Slot, SlotKind, join

Phase: TypeAlias = tuple[int, str]  # how often, pattern
Place: TypeAlias = tuple[int, int]  # microbatch, stage


@dataclass(frozen=True, slots=True)
class _Lane:
    """The order in which microbatches pass a device, each way."""

    forward: Sequence[Place]
    backward: Sequence[Place]


def gpipe(*, stages: int, microbatches: int) -> Schedule:
    """All forwards, then all backwards (Huang et al. 2019, arXiv 1811.06965)."""

    def phases(_: int) -> list[Phase]:
        return [(microbatches, "F"), (microbatches, "BW")]

    return _one_stage_a_device("gpipe", stages, microbatches, phases, padded=microbatches)


def one_f_one_b(*, stages: int, microbatches: int) -> Schedule:
    """As few forwards ahead as keep the pipe full, then one forward, one backward.

    PipeDream-Flush (Narayanan et al. 2021, arXiv 2006.09503): S - 1 - d forwards ahead.
    """
    padded = max(microbatches, stages)

    def phases(device: int) -> list[Phase]:
        ahead = stages - 1 - device
        return [(ahead, "F"), (padded - ahead, "F BW"), (ahead, "BW")]

    return _one_stage_a_device("1f1b", stages, microbatches, phases, padded=padded)


def zero_bubble_h1(*, stages: int, microbatches: int) -> Schedule:
    """1F1B with weight gradients put off until they fill the last bubbles.

    ZB-H1 (Qi et al. 2023, arXiv 2401.10241): device d runs d rounds without W, which then stay
    d behind, so that every device holds the activations of about S microbatches.
    """
    padded = max(microbatches, stages)

    def phases(device: int) -> list[Phase]:
        ahead = stages - 1 - device
        steady = padded - ahead - device
        return [(ahead, "F"), (device, "F B"), (steady, "F B W"), (ahead, "B W"), (device, "W")]

    return _one_stage_a_device("zb-h1", stages, microbatches, phases, padded=padded)


def interleaved(
    *, stages: int, microbatches: int, virtual: int, group: int | None = None
) -> Schedule:
    """1F1B on v virtual stages per device, G microbatches at a time through each.

    Narayanan et al. 2021 (arXiv 2104.04473): virtual stage c of device d is stage c*S + d, and
    (v - 1)*G + 2*(S - 1 - d) forwards run ahead. In the paper G is S and divides M; here it is
    the `group_size`. If M is not whole groups, the microbatches that are not there are left out.
    """
    if virtual < 2:
        raise UsageError(
            f"interleaved needs at least 2 virtual stages per device, not {virtual}",
            hint="choose 1f1b, which is the same schedule with 1",
        )
    group = group or group_size(stages, microbatches)
    padded = -(-microbatches // group) * group
    total = padded * virtual

    def table(device: int) -> Iterator[tuple[Slot, ...]]:
        ahead = min(total, (virtual - 1) * group + 2 * (stages - 1 - device))
        lane = _rounds(stages, group, padded, virtual, device)
        yield from _unroll([(ahead, "F"), (total - ahead, "F BW"), (ahead, "BW")], {"": lane})

    return _schedule("interleaved", stages, microbatches, virtual, map(table, range(stages)))


def group_size(stages: int, microbatches: int) -> int:
    """How many microbatches pass one virtual stage in a row: M in as many groups as have S.

    PyTorch's rounds, and Megatron-LM's `--microbatch-group-size-per-virtual-pipeline-stage`. A
    larger group idles no longer; more of its activations wait.

    >>> [group_size(16, m) for m in (48, 40, 30, 8)]
    [16, 20, 30, 16]
    """
    return max(stages, -(-microbatches // max(1, microbatches // stages)))


def _rounds(stages: int, group: int, padded: int, virtual: int, device: int) -> _Lane:
    """A group passes virtual stage 0, then 1, ... ; then the next one. Backward the reverse."""
    starts, chunks = range(0, padded, group), range(virtual)
    forward = [
        (start + i, chunk * stages + device)
        for start in starts
        for chunk in chunks
        for i in range(group)
    ]
    backward = [
        (microbatch, (virtual - 1) * stages + 2 * device - stage) for microbatch, stage in forward
    ]
    return _Lane(forward, backward)


def zero_bubble_v(*, stages: int, microbatches: int) -> Schedule:
    """Two virtual stages per device, down and up again in a V, weight gradients apart.

    ZB-V (Qi et al. 2023, arXiv 2401.10241): device d holds stages d and 2S - 1 - d, so the last
    forward and the first backward are on one device. Without bubble when F, B and W last alike.
    """
    padded = max(microbatches, 2 * stages - 1)

    def table(device: int) -> Iterator[tuple[Slot, ...]]:
        left = stages - device
        phases = [
            (2 * left - 1, "F0"),
            (device, "F1 F0"),
            (left, "F1 B1 W1"),
            (padded - stages - left + 1, "F0 B0 W0 F1 B1 W1"),
            (left - 1, "B0 W0 F1 B1 W1"),
            (device, "B0 B1"),
            (left, "B0 W0"),
            (device, "W1"),
            (device, "W0"),
        ]
        down, up = _lane(range(padded), device), _lane(range(padded), 2 * stages - 1 - device)
        yield from _unroll(phases, {"0": down, "1": up})

    return _schedule("zb-v", stages, microbatches, 2, map(table, range(stages)))


def dual_pipe(*, stages: int, microbatches: int) -> Schedule:
    """Microbatches enter at both ends; a forward one way is joined to a backward the other way.

    DualPipe (DeepSeek-V3 report, arXiv 2412.19437): device d holds stages d and S - 1 - d. Even
    microbatches go down, odd ones up. The report wants M even and at least 2S; with fewer, the
    microbatches that are not there are left out.
    """
    if stages % 2:
        raise UsageError(
            f"dualpipe needs an even number of stages, not {stages}",
            hint=f"take {stages + 1} stages, or another schedule",
        )
    padded = max(microbatches + microbatches % 2, 2 * stages)

    def table(device: int) -> Iterator[tuple[Slot, ...]]:
        lanes = [
            _lane(range(0, padded, 2), device),
            _lane(range(1, padded, 2), stages - 1 - device),
        ]
        near, far = lanes if device < stages // 2 else reversed(lanes)
        phases = _dual_phases(stages, padded // 2, min(device, stages - 1 - device))
        yield from _unroll(phases, {"0": near, "1": far})

    return _schedule("dualpipe", stages, microbatches, 1, map(table, range(stages)))


def _dual_phases(stages: int, each_way: int, depth: int) -> list[Phase]:
    """The eight steps of a device `depth` from its end; lane 0 is the direction it is near."""
    inner = stages // 2 - 1 - depth
    # The two middle devices keep the first pair apart: the other device waits for its F.
    first = "F0 BW1 F1&BW0" if inner == 0 else "F0&BW1 F1&BW0"
    last = [f"{'BW' if i <= depth else 'B'}{1 - i % 2}" for i in range(2 * depth + 2)]
    return [
        (2 * inner, "F0"),
        (depth + 1, "F0 F1"),
        (inner, "B1 W1 F1"),
        (1, first),
        (each_way - stages + depth, "F0&BW1 F1&BW0"),
        (inner, "BW1 F1&BW0"),
        (1, " ".join(last)),  # the second half leaves its weight gradients for the end
        (inner, "W B0"),
        (depth + 1, "W"),
    ]


def _lane(microbatches: Iterable[int], stage: int) -> _Lane:
    places = [(microbatch, stage) for microbatch in microbatches]
    return _Lane(places, places)


def _one_stage_a_device(
    name: str, stages: int, microbatches: int, phases: Callable[[int], list[Phase]], *, padded: int
) -> Schedule:
    tables = (_unroll(phases(d), {"": _lane(range(padded), d)}) for d in range(stages))
    return _schedule(name, stages, microbatches, 1, tables)


def _unroll(phases: Iterable[Phase], lanes: Mapping[str, _Lane]) -> Iterator[tuple[Slot, ...]]:
    """Phases as groups of slots. A `W` without a number is the oldest that was put off."""
    forward = {name: iter(lane.forward) for name, lane in lanes.items()}
    backward = {name: iter(lane.backward) for name, lane in lanes.items()}
    put_off: deque[tuple[str, Place]] = deque()

    def take(word: str) -> Slot:
        kind = word.rstrip("01")
        lane = word.removeprefix(kind)
        if kind == "W":
            chosen = next(entry for entry in put_off if entry[0].startswith(lane))
            put_off.remove(chosen)
            return Slot("W", *chosen[1])
        place = next(forward[lane] if kind == "F" else backward[lane])
        if kind == "B":
            put_off.append((lane, place))
        return Slot(cast(SlotKind, kind), *place)

    for times, pattern in phases:
        words = [group.split("&") for group in pattern.split()]
        for _ in range(times):
            yield from (tuple(map(take, group)) for group in words)


def _schedule(
    name: str,
    stages: int,
    microbatches: int,
    virtual: int,
    tables: Iterable[Iterator[tuple[Slot, ...]]],
) -> Schedule:
    """Leaves out the microbatches that only padded the pattern; what remains keeps its order."""
    devices = tuple(
        tuple(
            slot
            for group in table
            for slot in join(*(slot for slot in group if slot.microbatch < microbatches))
        )
        for table in tables
    )
    return Schedule(name, stages, microbatches, virtual, devices)


SCHEDULES: tuple[str, ...] = ("gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "dualpipe")
_MAKERS: dict[str, Callable[..., Schedule]] = {
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "zb-h1": zero_bubble_h1,
    "zb-v": zero_bubble_v,
    "dualpipe": dual_pipe,
}
_VIRTUAL = {"interleaved": 2, "zb-v": 2}  # virtual stages per device if nothing is said


def make_schedule(
    name: str, *, stages: int, microbatches: int, virtual: int | None = None
) -> Schedule:
    """The published schedule of that name; `virtual` is free only for interleaved (default 2).

    >>> make_schedule("1f1b", stages=2, microbatches=2).devices[0][0]
    Slot(kind='F', microbatch=0, stage=0, joined=False)
    """
    if name not in SCHEDULES:
        raise UnknownNameError("pipeline schedule", name, SCHEDULES)
    if stages < 1 or microbatches < 1:
        raise UsageError(
            f"{stages} stages and {microbatches} microbatches are not a pipeline",
            hint="give at least 1 of each",
        )
    if name == "interleaved":
        chunks = _VIRTUAL[name] if virtual is None else virtual
        return interleaved(stages=stages, microbatches=microbatches, virtual=chunks)
    _check_virtual(name, virtual)
    return _MAKERS[name](stages=stages, microbatches=microbatches)


def _check_virtual(name: str, virtual: int | None) -> None:
    fixed = _VIRTUAL.get(name, 1)
    if virtual not in (None, fixed):
        raise UsageError(
            f"{name} has {fixed} virtual stage{'s' if fixed > 1 else ''} per device, not {virtual}",
            hint="leave --virtual out, or choose interleaved",
        )

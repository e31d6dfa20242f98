"""From layers to steps, for many points at once: stages, microbatches, bubbles.

In: a chunk of points and its contractions, or their `LayerTimes`: for every kind of layer and every
point the seconds of its parts. Out: arrays of expected seconds and of collectives. What
`stage_time` and `step_time` do for one layout is done here for all of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from rooflight.algebra.notation import Contraction, Tensor
from rooflight.costs.mesh_sweep import Floats, Ints
from rooflight.plan.training.derive.algorithm import derive_again, visible_part
from rooflight.plan.training.derive.derivation import Derived, DerivedLayer
from rooflight.plan.training.memory.job import Microbatching
from rooflight.plan.training.memory.remat import Remat
from rooflight.plan.training.time.stage_time import HEAD, Overlap, Part, step_shares
from rooflight.plan.training.time.stages import idle_rounds, seconds_of
from rooflight.plan.training.time.step_time import layer_runs
from rooflight.plan.training.time.sweep import Chooser, Points, combinations_of, placing

Key = tuple[str, str]  # part, and mesh axes ("" for matmuls)
LayerTimes = Mapping[Key, Floats]
Recomputed = tuple[tuple[str, frozenset[str]], ...]  # the ops that each remat policy recomputes


@dataclass(frozen=True, slots=True)
class Seconds:
    """Of a step, and of its collectives, hidden ones too, on every point."""

    total: Floats
    collectives: Floats


@dataclass(frozen=True, slots=True)
class _StageTimes:
    """One stage on every point: its whole step, its collectives, its three slots."""

    work_s: Floats
    queued_s: Floats
    slots_s: Sequence[Floats]


class StepSweep:
    """All points of a chunk, ready for any schedule and remat policy."""

    def __init__(self, points: Points, times: Mapping[int, LayerTimes], overlap: Overlap) -> None:
        self._points, self._times = points, times
        self._overlap: Overlap = overlap
        self._count = points.count.astype(np.float64)
        self._axes = sorted({axes for parts in times.values() for _, axes in parts if axes})
        self._sent = self._transfers()
        self._shares: dict[Microbatching, dict[int, Floats]] = {}
        self._parts: dict[tuple[Microbatching, str, str, bool], Floats] = {}

    def _transfers(self) -> Floats | None:
        """To the next stage, one way, for one chunk of layers."""
        points = self._points
        if not points.layout.stages:
            return None
        stream = points.layout.of_activation(Tensor("x", ("B", "T", "D"), ((), (), ())))
        nbytes = points.bytes(points.elements(stream))
        return points.rates("shift", points.layout.stages).seconds(nbytes)

    def seconds(self, micro: Microbatching, remat: Remat) -> Seconds:
        """A stage, and the bubble; nonsense where no table exists."""
        stage = self._stage(micro, remat, self._overlap)
        if not self._points.layout.stages:
            return Seconds(stage.work_s, stage.queued_s)
        idle = seconds_of(*idle_rounds(self._points.num_stages), micro.virtual, stage.slots_s)
        return Seconds(stage.work_s + idle, stage.queued_s)

    def _share(self, micro: Microbatching) -> dict[int, Floats]:
        """What a stage runs of each block, on every point."""
        order = self._points.sizes.graph.order
        stages = self._points.distinct_stages
        rows = [step_shares(order, int(s), micro, in_step=True)[0] for s in stages]
        return {
            b: np.array([r.get(b, 0.0) for r in rows])[self._points.stages_of]
            for b in (*dict.fromkeys(order), HEAD)
        }

    def _stage(self, micro: Microbatching, remat: Remat, overlap: Overlap) -> _StageTimes:
        recomputed, is_staged = f"recompute:{remat.name}", self._sent is not None
        # A backward of a pipeline runs its stage again; the head is with the loss.
        slots = (("F",), ("F", "B", recomputed) if is_staged else ("B", recomputed), ("W",))
        headed = (not is_staged, True, True)
        matmuls = [self._sum(micro, p, "", h) for p, h in zip(slots, headed, strict=True)]
        axes = [
            {a: self._sum(micro, p, a, h) for a in self._axes}
            for p, h in zip(slots, headed, strict=True)
        ]
        if self._sent is not None:
            where = "+".join(sorted(self._points.layout.stages))
            for slot, times in zip(axes, (micro.virtual, micro.virtual, 0), strict=True):
                slot[where] = times * self._sent
        whole = {
            a: self._count * (axes[0][a] + axes[1][a] + axes[2][a]) + self._part(micro, "once", a)
            for a in axes[0]
        }
        busy = self._count * sum(matmuls)
        return _StageTimes(
            np.maximum(busy, _together(whole, overlap)),
            _together(whole, "sum") + np.zeros(len(self._count)),
            [np.maximum(p, _together(c, overlap)) for p, c in zip(matmuls, axes, strict=True)],
        )

    def _sum(self, micro: Microbatching, parts: Sequence[str], axes: str, has_head: bool) -> Floats:
        return sum((self._part(micro, p, axes, has_head) for p in parts), np.zeros(1))

    def _part(self, micro: Microbatching, part: str, axes: str, has_head: bool = True) -> Floats:
        """One part of all layers of a stage: most are the same under every remat policy."""
        key = micro, part, axes, has_head
        if key not in self._parts:
            if micro not in self._shares:
                self._shares[micro] = self._share(micro)
            total = np.zeros(1)
            for block, layers in self._shares[micro].items():
                seconds = self._times[block].get((part, axes))
                if seconds is not None and (has_head or block != HEAD):
                    total = total + layers * seconds
            self._parts[key] = total
        return self._parts[key]


def _together(axes: Mapping[str, Floats], overlap: Overlap) -> Floats:
    if overlap == "sum" or not axes:
        return sum(axes.values(), np.zeros(1))
    return np.maximum.reduce(np.broadcast_arrays(*axes.values()))


def layer_times(
    points: Points, asked: Mapping[int, Sequence[Contraction]]
) -> dict[int, LayerTimes]:
    """Seconds of one layer of each kind in one microbatch, by part and axes.

    Parts are those of `stage_time`; of what a remat policy recomputes, `recompute:NAME`.
    """
    graph, chooser = points.sizes.graph, Chooser(points)
    found: dict[int, LayerTimes] = {}
    for block, ops in layer_runs(graph):
        recomputed = tuple(
            (name, frozenset(op.name for op in saved[block].ops))
            for name, saved in points.sizes.saved.items()
        )
        totals: dict[Key, Floats] = {}
        for where, chosen in combinations_of(chooser, asked[block]):
            derivation = derive_again(graph, ops, points.layout, chosen.__getitem__)
            _add(totals, points, derivation, recomputed, where)
        found[block] = totals
    return found


def _add(
    totals: dict[Key, Floats],
    points: Points,
    derivation: DerivedLayer,
    recomputed: Recomputed,
    where: Ints,
) -> None:
    for key, lines in _tally(derivation, recomputed).items():
        seconds = sum((n * _seconds(points, line) for line, n in lines), np.zeros(1))
        total = totals.setdefault(key, np.zeros(len(points)))
        if len(where) == len(points):
            total += seconds
        else:
            total[where] += seconds[where] if len(seconds) > 1 else seconds


def _seconds(points: Points, line: Derived) -> Floats:
    if line.hops:
        count, nbytes, _ = points.hops(line.step)
        return count * points.rates("shift", line.step.axes).seconds(nbytes)
    if line.step.op != "einsum":
        return points.collective(line.step)
    op = line.op
    sizes = {d: int(points.dims[d][0]) for d in ("T", "S")} if op.mask else {}
    return points.matmul(line.step, visible_part(op, sizes), kernel=op.mask is not None)


@lru_cache(maxsize=2048)
def _tally(
    derivation: DerivedLayer, recomputed: Recomputed
) -> dict[Key, list[tuple[Derived, int]]]:
    """The lines of every part, those that take the same time once, with how many they are."""
    found: dict[Key, dict[object, list[Derived]]] = {}

    def add(part: str, line: Derived) -> None:
        lines = found.setdefault((part, "+".join(sorted(line.step.axes))), {})
        lines.setdefault(_likeness(line), []).append(line)

    for line in derivation.spent:
        part: Part = "once" if line.once else line.slot
        add(part, line)
    for line in derivation.forward:
        if line.step.op == "einsum" or line.waits == "critical":
            for name, names in recomputed:
                if line.op.name in names:
                    add(f"recompute:{name}", line)
    return {k: [(alike[0], len(alike)) for alike in v.values()] for k, v in found.items()}


def _likeness(line: Derived) -> object:
    """What the time of a line depends on, sizes and axes of a group aside: no names."""
    step = line.step
    if step.op == "einsum":
        return *map(placing, (*step.inputs, step.output)), line.op.mask
    return step.op, line.hops, placing(step.larger)

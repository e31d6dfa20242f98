"""From layers to steps, for many points at once: stages, microbatches, bubbles.

In: `LayerTimes` of a chunk of points. Out: arrays of expected seconds and of collectives. What
`stage_time` and `step_time` do for one layout is done here for all of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from rooflight.algebra import Tensor
from rooflight.costs.choose import TIE
from rooflight.plan.bubble import BUBBLES
from rooflight.plan.job import Microbatching
from rooflight.plan.remat import Remat
from rooflight.plan.stage_time import HEAD, Overlap, stage_shares
from rooflight.plan.sweep import LayerTimes, Points

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Composed:
    """Expected seconds of a step, and of the collectives of its slowest stage, on every point."""

    expected_s: Floats
    collectives_s: Floats


@dataclass(frozen=True, slots=True)
class _Stage:
    """One stage on every point: its whole step, its collectives, its three slots."""

    work_s: Floats
    queued_s: Floats
    slots_s: Sequence[Floats]


class Steps:
    """All points of a chunk, ready for any schedule and remat policy."""

    def __init__(self, points: Points, times: Mapping[int, LayerTimes]) -> None:
        self._points, self._times = points, times
        self._count = points.count.astype(np.float64)
        self._axes = sorted({axes for parts in times.values() for _, axes in parts if axes})
        self._sent = self._transfers()

    def _transfers(self) -> Floats | None:
        """To the next stage, one way, for one chunk of layers."""
        points = self._points
        if not points.layout.stages:
            return None
        stream = points.layout.of_activation(Tensor("x", ("B", "T", "D"), ((), (), ())))
        return points.shift().seconds(points.bytes(points.elements(stream)))

    def composed(self, micro: Microbatching, remat: Remat, overlap: Overlap) -> Composed:
        """Every stage, the slowest of them, and the bubble; nonsense where no table exists."""
        stages = [self._stage(s, micro, remat, overlap) for s in self._shares(micro)]
        work = np.stack([s.work_s for s in stages])
        longest = work.max(axis=0)
        slowest = (work >= longest * (1 - TIE)).argmax(axis=0)
        queued = np.stack([s.queued_s for s in stages])[slowest, np.arange(len(longest))]
        if not self._points.layout.stages:
            return Composed(longest, queued)
        slots = [np.max([s.slots_s[i] for s in stages], axis=0) for i in range(3)]
        idle = BUBBLES[micro.schedule].idle(self._points.num_stages, micro.virtual, *slots)
        return Composed(longest + idle, queued)

    def _shares(self, micro: Microbatching) -> list[dict[int, Floats]]:
        """What the stages that may be slowest hold, on every point."""
        order = self._points.sizes.graph.order
        rows = [largest_shares(order, int(s), micro) for s in self._points.distinct_stages]
        deepest = max(map(len, rows))
        filled = [(*r, *([r[0]] * (deepest - len(r)))) for r in rows]
        blocks = (*dict.fromkeys(order), HEAD)
        return [
            {
                b: np.array([r[i].get(b, 0.0) for r in filled])[self._points.stages_of]
                for b in blocks
            }
            for i in range(deepest)
        ]

    def _stage(
        self, share: Mapping[int, Floats], micro: Microbatching, remat: Remat, overlap: Overlap
    ) -> _Stage:
        parts = (("F",), ("B", f"again:{remat.name}"), ("W",))
        products = [self._sum(share, p, "") for p in parts]
        axes = [{a: self._sum(share, p, a) for a in self._axes} for p in parts]
        if self._sent is not None:
            where = "+".join(sorted(self._points.layout.stages))
            for slot, times in zip(axes, (micro.virtual, micro.virtual, 0), strict=True):
                slot[where] = times * self._sent
        whole = {
            a: self._count * (axes[0][a] + axes[1][a] + axes[2][a]) + self._sum(share, ("once",), a)
            for a in axes[0]
        }
        busy = self._count * sum(products)
        return _Stage(
            np.maximum(busy, _together(whole, overlap)),
            _together(whole, "sum") + np.zeros(len(self._count)),
            [np.maximum(p, _together(c, overlap)) for p, c in zip(products, axes, strict=True)],
        )

    def _sum(self, share: Mapping[int, Floats], parts: Sequence[str], axes: str) -> Floats:
        total = np.zeros(1)
        for block, layers in share.items():
            times = [t for p in parts if (t := self._times[block].get((p, axes))) is not None]
            if times:
                total = total + layers * (times[0] if len(times) == 1 else times[0] + times[1])
        return total


@lru_cache(maxsize=4096)
def largest_shares(
    order: tuple[int, ...], stages: int, micro: Microbatching
) -> tuple[Mapping[int, float], ...]:
    """The stages that hold no less of every block than some other: one of these is slowest."""
    if stages % 2 and micro.schedule == "dualpipe":
        return ({},)  # there is no such table
    every = stage_shares(order, stages, micro)
    shares = list({tuple(sorted(share.items())): share for share in every}.values())
    return tuple(
        s for s in shares if not any(_holds(other, s) for other in shares if other is not s)
    )


def _holds(larger: Mapping[int, float], smaller: Mapping[int, float]) -> bool:
    return all(larger.get(block, 0.0) >= n for block, n in smaller.items())


def _together(axes: Mapping[str, Floats], overlap: Overlap) -> Floats:
    if overlap == "sum" or not axes:
        return sum(axes.values(), np.zeros(1))
    return np.maximum.reduce(np.broadcast_arrays(*axes.values()))

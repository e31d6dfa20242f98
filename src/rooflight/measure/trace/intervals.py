"""Time spans as columns: unions, what lies inside them, and whose turn it is.

In: starts and stops in picoseconds. Out: the same, disjoint, or measures of them; all exact.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rooflight.measure.trace.wire import I64

SECONDS = 1e-12  # of a picosecond
F64 = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Segments:
    """Disjoint spans in order, each owned by one of the things that ran."""

    owner: I64
    start: I64
    stop: I64


def turns(owner: I64, start: I64, stop: I64) -> Segments:
    """Every instant given to the one that began last of those that run: an inner op, a callee."""
    order = np.lexsort((-stop, start))
    owner, start, stop = owner[order], start[order], stop[order]
    if (stop[:-1] <= start[1:]).all():
        return Segments(owner, start, stop)
    mine: list[int] = []
    begins: list[int] = []
    ends: list[int] = []
    stack: list[tuple[int, int]] = []
    clock = 0
    later = zip(owner.tolist(), start.tolist(), stop.tolist(), strict=True)
    for who, begin, end in [*later, (-1, int(stop.max()), 0)]:
        while stack and clock < begin:
            ends_at, running = stack[-1]
            if ends_at <= clock:
                stack.pop()
                continue
            until = min(ends_at, begin)
            mine.append(running)
            begins.append(clock)
            ends.append(until)
            clock = until
        clock = max(clock, begin)
        stack.append((end, who))
    columns = (np.array(column, dtype=np.int64) for column in (mine, begins, ends))
    return Segments(*columns)


def cut(found: Segments, at: I64) -> Segments:
    """The same spans, broken at some instants in order."""
    first = np.searchsorted(at, found.start, side="right")
    pieces = np.searchsorted(at, found.stop, side="left") - first + 1
    if (pieces <= 1).all():
        return found
    one = np.repeat(np.arange(len(pieces)), pieces)
    turn = np.arange(len(one)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    place = first[one] + turn
    start = np.where(turn == 0, found.start[one], at[np.maximum(place - 1, 0)])
    stop = np.where(turn == pieces[one] - 1, found.stop[one], at[np.minimum(place, len(at) - 1)])
    return Segments(found.owner[one], start, stop)


def union(start: I64, stop: I64) -> tuple[I64, I64]:
    """The spans merged: disjoint and in order."""
    if not len(start):
        return start, stop
    order = np.argsort(start, kind="stable")
    start, stop = start[order], stop[order]
    reach = np.maximum.accumulate(stop)
    fresh = np.flatnonzero(np.append(True, start[1:] > reach[:-1]))
    last = np.append(fresh[1:], len(start)) - 1
    return start[fresh], reach[last]


def inside(start: I64, stop: I64, cover: tuple[I64, I64]) -> I64:
    """Picoseconds of each span that lie within a cover of disjoint spans."""
    return _covered(stop, cover) - _covered(start, cover)


def _covered(at: I64, cover: tuple[I64, I64]) -> I64:
    """Picoseconds of the cover before each instant."""
    begin, end = cover
    if not len(begin):
        return np.zeros_like(at)
    sums = np.append(0, np.cumsum(end - begin))
    index = np.searchsorted(begin, at, side="right")
    before = np.maximum(index - 1, 0)
    part = np.clip(at - begin[before], 0, end[before] - begin[before])
    return np.where(index > 0, sums[before] + part, 0)


def gaps(cover: tuple[I64, I64], start: int, stop: int) -> tuple[I64, I64]:
    """What a cover of disjoint spans leaves free of a window."""
    near = (cover[1] > start) & (cover[0] < stop)
    begin = np.append(start, np.minimum(cover[1][near], stop))
    end = np.append(np.maximum(cover[0][near], start), stop)
    free = end > begin
    return begin[free], end[free]

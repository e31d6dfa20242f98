"""Live bytes along the schedule: how much of a memory is taken at every instruction.

In: the texts `*-buffer-assignment.txt` and `*-live-range.txt` of a dump. Out: a `LiveBytes`. Values
that share a place, such as what a loop hands on, count once.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate

_ALLOCATION = re.compile(r"allocation (\d{1,9}): size \d{1,18}(.*)")
_COLOR = re.compile(r"color (\d{1,9})")
_VALUE = re.compile(
    r" value: <\d+ (\S+?)(\{[\d,]*\})?(?: \(phi\))? @\d+> \(size=(\d{1,18}),offset=(\d{1,18})\)"
)
_SEQUENCE = re.compile(r"    (\d{1,9}):(\S+)")
_RANGE = re.compile(r"    (\S+?\{[\d,]*\}):(\d{1,9})-(\d{1,9})")
_MOST = 10_000_000  # instructions; a damaged text must not fill the memory

Slot = tuple[int, int]  # allocation and offset in it


@dataclass(frozen=True, slots=True)
class LiveBytes:
    """Bytes of main memory taken while each instruction of the schedule runs."""

    names: tuple[str, ...]
    nbytes: tuple[int, ...]

    @property
    def peak(self) -> int:
        return max(self.nbytes, default=0)

    @property
    def peak_at(self) -> int:
        """The first instruction at the peak."""
        return self.nbytes.index(self.peak) if self.nbytes else 0


def read_live(assignment: str, live_ranges: str) -> LiveBytes | None:
    """Reads both texts; None if they do not say."""
    places = _places(assignment)
    lines = live_ranges.splitlines()
    names = {int(m[1]): m[2] for line in lines if (m := _SEQUENCE.fullmatch(line))}
    if not names or max(names) >= _MOST:
        return None
    end = max(names) + 1
    taken: dict[Slot, list[tuple[int, int, int]]] = {}
    for match in filter(None, map(_RANGE.fullmatch, lines)):
        if (found := places.get(match[1])) is not None:
            last = min(int(match[3]), end - 1)
            taken.setdefault(found[0], []).append((int(match[2]), last, found[1]))
    changes = [0] * (end + 1)
    for ranges in taken.values():
        for first, last, size in _apart(ranges):
            changes[first] += size
            changes[last + 1] -= size
    return LiveBytes(
        tuple(names.get(at, "") for at in range(end)), tuple(accumulate(changes[:end]))
    )


def _places(assignment: str) -> dict[str, tuple[Slot, int]]:
    """Where the values of main memory lie, by name and index, and their bytes."""
    found: dict[str, tuple[Slot, int]] = {}
    here: int | None = None
    for line in assignment.splitlines():
        if match := _ALLOCATION.fullmatch(line):
            color = _COLOR.search(match[2])
            here = int(match[1]) if color is None or color[1] == "0" else None
        elif here is not None and (match := _VALUE.match(line)):
            slot = (here, int(match[4]))
            found[match[1] + (match[2] or "{}")] = (slot, int(match[3]))
    return found


def _apart(ranges: Iterable[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Ranges of one place without overlap: where two values share it, the larger counts.

    >>> _apart([(2, 6, 10), (0, 3, 40)])
    [(0, 3, 40), (4, 6, 10)]
    """
    apart: list[tuple[int, int, int]] = []
    for first, last, size in sorted(ranges, key=lambda r: (-r[2], r[0])):
        start = first
        for other, end, _ in sorted(apart):
            if other > last or end < start:
                continue
            if other > start:
                apart.append((start, other - 1, size))
            start = end + 1
        if start <= last:
            apart.append((start, last, size))
    return apart

"""What a compiled step needs of memory: the compiler's own total, what it is made of, the peak.

In: the texts `*-buffer-assignment.txt` and `*-live-range.txt` of a dump. Out: bytes by category
in each memory, and the largest buffers alive at the peak.

Live bytes along the schedule: how much of a memory is taken at every instruction. Values that share
a place, such as what a loop hands on, count once.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate

from rooflight.compile.hlo.instruction import Module
from rooflight.errors import ParseError

_NUMBERED = re.compile(r"allocation (\d{1,9}): size \d{1,18}(.*)")
_VALUE = re.compile(
    r" value: <\d+ (\S+?)(\{[\d,]*\})?(?: \(phi\))? @\d+> \(size=(\d{1,18}),offset=(\d{1,18})\)"
)
_SEQUENCE = re.compile(r"    (\d{1,9}):(\S+)")
_RANGE = re.compile(r"    (\S+?\{[\d,]*\}):(\d{1,9})-(\d{1,9})")
_MOST = 10_000_000  # instructions; a damaged text must not fill the memory

Slot = tuple[int, int]  # allocation and offset in it

_ALLOCATION = re.compile(r"allocation \d+: size (\d{1,18})(.*?):?")
_COLOR = re.compile(r"color (\d{1,9})")
_PEAK = re.compile(r"\s*Live ranges at \d+ \(peak\):")
_LIVE = re.compile(r"\s*(\S+?)(\{[\d,]*\}): (\d{1,18}) bytes \(cumulative: \d+ bytes\)")
_HBM_LIMIT = re.compile(
    r"Ran out of memory (?:on|in memory space) \w+[^(]*\(([\d.]+)([BKMGT])\) exceeds"
    r" available \w+ \(([\d.]+)([BKMGT])\)"
)
_UNITS = {"B": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
CATEGORIES = ("arguments", "outputs", "constants", "temporaries", "scratch")


@dataclass(frozen=True, slots=True)
class Buffer:
    """One array alive at the peak, in which memory, and which instruction made it where."""

    name: str
    nbytes: int
    shape: str
    memory: str
    op_name: str
    source: str


@dataclass(frozen=True, slots=True)
class HloMemory:
    """Bytes of one device's main memory by category, and what lives at the peak anywhere."""

    by_category: Mapping[str, int]
    peak: tuple[Buffer, ...]

    @property
    def total_bytes(self) -> int:
        """What the compiler holds against the limit of the chip."""
        return sum(self.by_category.values())


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """The compiler's verdict that a step does not fit, in its own rounded figures."""

    needed_bytes: int
    limit_bytes: int


def read_memory(assignment: str, live_ranges: str, module: Module | None) -> HloMemory:
    """Reads both texts; shapes and lines of the peak's buffers come from the module."""
    totals: dict[str, int] = {name: 0 for name in CATEGORIES}
    if not assignment.startswith("BufferAssignment:"):
        raise ParseError(
            "a buffer assignment begins with `BufferAssignment:`; this text does not",
            hint="give the `*-buffer-assignment.txt` of an `--xla_dump_to` folder",
        )
    for line in assignment.splitlines():
        match = _ALLOCATION.fullmatch(line)
        color = _COLOR.search(match[2]) if match else None
        if match and (color is None or int(color[1]) == 0):
            totals[_category(match[2])] += int(match[1])
    return HloMemory(totals, tuple(_peak(live_ranges, module)))


def _category(words: str) -> str:
    """An output that takes the place of a donated argument counts as argument."""
    if "parameter" in words:
        return "arguments"
    if "live-out" in words or "output" in words:
        return "outputs"
    if "constant" in words:
        return "constants"
    return "scratch" if "thread-local" in words else "temporaries"


def _peak(text: str, module: Module | None) -> list[Buffer]:
    found: list[Buffer] = []
    lines = iter(text.splitlines())
    for line in lines:
        if _PEAK.fullmatch(line):
            break
    for line in lines:
        match = _LIVE.fullmatch(line)
        if match is None:
            break
        found.append(_buffer(match[1], match[2], int(match[3]), module))
    return sorted(found, key=lambda b: -b.nbytes)


def _buffer(name: str, index: str, nbytes: int, module: Module | None) -> Buffer:
    site = module.find(name) if module else None
    if module is None or site is None:
        return Buffer(name + index.replace("{}", ""), nbytes, "", "unknown", "", "")
    instruction = site[1]
    at = index.strip("{}")
    shapes = instruction.shapes[int(at) :] if at.isdecimal() else instruction.shapes
    shape = next((s for s in shapes if s.nbytes == nbytes or s.padded_bytes == nbytes), None)
    return Buffer(
        name=name + index.replace("{}", ""),
        nbytes=nbytes,
        shape=str(shape) if shape else "",
        memory=shape.memory if shape else "unknown",
        op_name=instruction.op_name,
        source=module.source(instruction),
    )


def read_out_of_memory(message: str) -> OutOfMemory | None:
    """The figures of `RESOURCE_EXHAUSTED: Ran out of memory on HBM ...`, None of other errors.

    >>> read_out_of_memory("RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory"
    ...     " required for HLO temporaries (304.13G) exceeds available HBM (15.75G).")
    OutOfMemory(needed_bytes=326557100933, limit_bytes=16911433728)
    """
    match = _HBM_LIMIT.search(message)
    if match is None:
        return None
    needed, limit = (int(float(n) * _UNITS[u]) for n, u in (match.group(1, 2), match.group(3, 4)))
    return OutOfMemory(needed, limit)


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
        if match := _NUMBERED.fullmatch(line):
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

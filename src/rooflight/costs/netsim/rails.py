"""The rounds of collectives behind switches: who sends how much to whom.

In: the tiers of a slice and the lines of a group along each. Out: stages of `Round`s, in each of
which every chip sends one message. A rail is the chips in the same place of all nodes: a gather
first goes along rails, the outer tier first, doubling what each chip holds, then round the ring of
a node. An exchange first hands chunks to the chip of the node whose rail they take.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import NamedTuple

from rooflight.hardware.mesh import Mesh
from rooflight.hardware.slice import SwitchDim

Line = tuple[int, ...]  # the places along a dim that one group takes
Tiers = Sequence[SwitchDim]  # inner first
Lines = Sequence[Sequence[Line]]  # of each tier, of each place along it


class Round(NamedTuple):
    """Every chip sends so many blocks to its target over one tier; to itself nothing is sent.

    What is sent is there when the stage begins; a round that `relays` sends on what has just come.
    """

    tier: int
    targets: tuple[int, ...]
    blocks: float
    relays: bool = False


Stage = Sequence[Round]


def lines_of(mesh: Mesh, axes: Sequence[str]) -> Lines:
    """For each tier, inner first, for each place along it: the places of its group.

    >>> from rooflight.hardware.mesh import parse_mesh
    >>> lines_of(parse_mesh("X=2,Y=4", on="h100:4x2"), ["X"])
    ([(0,), (1,), (2,), (3,)], [(0, 1), (0, 1)])
    """
    fixed = [s for axis, parts in mesh.segments.items() if axis not in axes for s in parts]
    lines: list[list[Line]] = []
    for dim in reversed(mesh.slice.dims):
        parts = [s for s in fixed if s.dim == dim.name]
        keys = [tuple(p // s.stride % s.size for s in parts) for p in range(dim.size)]
        lines.append([tuple(p for p, k in enumerate(keys) if k == key) for key in keys])
    return tuple(lines)


def gather_stages(tiers: Tiers, lines: Lines) -> list[Stage]:
    """An all-gather, outer tiers first; blocks are shards.

    A stage multiplies what each chip holds by a prime factor of the tier's size, or goes round a
    ring; a ring is the chips of a host.

    >>> from rooflight.hardware.mesh import parse_mesh
    >>> mesh = parse_mesh("X=12", on="h100:3x4")
    >>> stages = gather_stages(tuple(reversed(mesh.slice.dims)), lines_of(mesh, "X"))
    >>> [[(r.targets[0], r.blocks) for r in stage] for stage in stages]
    [[(3, 1)], [(6, 2)], [(1, 4), (1, 4)]]
    """
    stages: list[Stage] = []
    held = 1
    for tier in reversed(range(len(tiers))):
        size = len(lines[tier][0])
        near = size if size <= tiers[tier].chain else math.gcd(size, tiers[tier].chain)
        for before, ways in _factors(size // near):
            turns = [_targets(tiers, lines, tier, near * before, ways, t) for t in range(1, ways)]
            stages.append([Round(tier, targets, held * before) for targets in turns])
        held *= size // near
        if near > 1:
            following = _targets(tiers, lines, tier, 1, near, 1)
            stages.append([Round(tier, following, held, step > 1) for step in range(1, near)])
        held *= near
    return stages


def scatter_stages(tiers: Tiers, lines: Lines) -> list[Stage]:
    """A reduce-scatter: the gather backwards, every message going the other way."""
    return [
        [r._replace(targets=_inverse(r.targets)) for r in stage]
        for stage in reversed(gather_stages(tiers, lines))
    ]


def exchange_parts(tiers: Tiers, lines: Lines, pieces: int) -> list[tuple[Stage, Stage]]:
    """An all-to-all in parts, each for one node: inside the sending node, then along rails.

    Blocks are what one chip has for another, of which a part carries 1 / pieces.
    """
    members = len(lines[0][0])
    near = [
        Round(0, _targets(tiers, lines, 0, 1, members, turn), 1 / pieces)
        for turn in range(1, members)
    ]
    parts: list[tuple[Stage, Stage]] = []
    for turn in _interleaved(tiers, lines):
        targets = tuple(range(_num_chips(tiers)))
        for tier, steps in enumerate(turn, start=1):
            moved = _targets(tiers, lines, tier, 1, len(lines[tier][0]), steps)
            targets = tuple(moved[t] for t in targets)
        level = max((tier for tier, steps in enumerate(turn, start=1) if steps), default=0)
        parts.append((near, [Round(level, targets, members / pieces)] if level else []))
    return parts * pieces


def _interleaved(tiers: Tiers, lines: Lines) -> list[tuple[int, ...]]:
    """How far to go at each tier of the fabric, one entry a node, the own one last.

    Those that cross the spine are spread out, so that uplinks and NICs are busy at once.
    """
    turns = list(product(*(range(len(lines[tier][0])) for tier in range(1, len(tiers)))))
    order: dict[tuple[int, ...], float] = {}
    for crosses in (False, True):
        alike = [t for t in turns if any(t[1:]) == crosses and any(t)]
        order |= {turn: (i + 0.5) / len(alike) for i, turn in enumerate(alike)}
    return sorted(turns, key=lambda turn: order.get(turn, 1.0))


def _factors(size: int) -> Iterator[tuple[int, int]]:
    """The primes of a size, each with the product of those before it."""
    before = 1
    for prime in range(2, size + 1):
        while size % (before * prime) == 0:
            yield before, prime
            before *= prime


def _targets(
    tiers: Tiers, lines: Lines, tier: int, stride: int, ways: int, turn: int
) -> tuple[int, ...]:
    """For each chip the member so many turns on in one digit of its index along a tier."""

    def on(index: int) -> int:
        digit = index // stride % ways
        return index + ((digit + turn) % ways - digit) * stride

    return tuple(_moved(tiers, lines, tier, chip, on) for chip in range(_num_chips(tiers)))


def _moved(tiers: Tiers, lines: Lines, tier: int, chip: int, on: Callable[[int], int]) -> int:
    unit = tiers[tier].unit_chips
    place = chip // unit % tiers[tier].size
    line = lines[tier][place]
    return chip + (line[on(line.index(place))] - place) * unit


def _inverse(targets: Sequence[int]) -> tuple[int, ...]:
    sources = [0] * len(targets)
    for source, target in enumerate(targets):
        sources[target] = source
    return tuple(sources)


def _num_chips(tiers: Tiers) -> int:
    return tiers[-1].size * tiers[-1].unit_chips

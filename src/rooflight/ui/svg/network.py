"""Where the chips and switches of a slice stand in a picture: ring, line, grid, planes or tree.

In: a `Slice`. Out: a `NetworkMap`: a place for each number, chips before switches, and links.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

from rooflight.hardware.slice import Slice, SwitchDim, TorusDim

_APART = 0.7  # of a box, between planes: what is not whole is in another plane

Point = tuple[float, float]
Shape = Literal["ring", "line", "torus", "mesh", "tree"]


@dataclass(frozen=True, slots=True)
class NetworkMap:
    """Places in units of a box: a neighbour is one unit away, unless its link goes round an end."""

    shape: Shape
    places: tuple[Point, ...]
    names: tuple[str, ...]
    num_chips: int
    links: tuple[tuple[int, int], ...]  # pairs that are joined, each once

    def is_near(self, source: int, target: int) -> bool:
        """Whether a straight arrow between the two crosses no other box."""
        if self.shape in ("tree", "ring"):
            return True
        (x1, y1), (x2, y2) = self.places[source], self.places[target]
        return math.hypot(x2 - x1, y2 - y1) < 1.01

    def is_in_plane(self, source: int, target: int) -> bool:
        """Whether the two stand in the same plane of three dims."""
        (x1, y1), (x2, y2) = self.places[source], self.places[target]
        return all(abs(by - round(by)) < 1e-6 for by in (x2 - x1, y2 - y1))


def network_layout(on: Slice) -> NetworkMap:
    """The picture of a slice that lies on one kind of network.

    >>> from rooflight.hardware.slice import parse_slice
    >>> network_layout(parse_slice("v5e:16x1")).shape, network_layout(parse_slice("h100:8x2")).shape
    ('ring', 'tree')
    """
    torus = [d for d in on.dims if isinstance(d, TorusDim)]
    if not torus:
        return _tree([d for d in on.dims if isinstance(d, SwitchDim)])
    long = [d for d in torus if d.size > 1]
    links = tuple(_torus_links(torus))
    chips = math.prod(d.size for d in torus)
    names = tuple(map(str, range(chips)))
    if len(long) < 2:
        ring = bool(long) and long[0].wraps and chips > 2
        places = _circle(chips) if ring else tuple((float(i), 0.0) for i in range(chips))
        return NetworkMap("ring" if ring else "line", places, names, chips, links)
    shape = "torus" if all(d.wraps for d in long) else "mesh"
    return NetworkMap(shape, _planes([d.size for d in long]), names, chips, links)


def _circle(count: int) -> tuple[Point, ...]:
    """Neighbours one unit apart, the first at the top, clockwise."""
    radius = max(0.5 / math.sin(math.pi / count), 1.0)
    angles = [2 * math.pi * i / count - math.pi / 2 for i in range(count)]
    return tuple((radius * math.cos(a), radius * math.sin(a)) for a in angles)


def _planes(sizes: Sequence[int]) -> tuple[Point, ...]:
    """Rows and columns; a third dim makes planes, set in rows of their own."""
    planes, rows, cols = (1, *sizes)[-3:]
    across = math.ceil(math.sqrt(planes))
    return tuple(
        (plane % across * (cols + _APART) + col, plane // across * (rows + _APART) + row)
        for plane, row, col in product(range(planes), range(rows), range(cols))
    )


def _torus_links(dims: Sequence[TorusDim]) -> list[tuple[int, int]]:
    pitches = [math.prod(d.size for d in dims[i + 1 :]) for i in range(len(dims))]
    links: list[tuple[int, int]] = []
    for chip in range(math.prod(d.size for d in dims)):
        for dim, pitch in zip(dims, pitches, strict=True):
            at = chip // pitch % dim.size
            if at + 1 < dim.size:
                links.append((chip, chip + pitch))
            elif dim.wraps and dim.size > 2:
                links.append((chip, chip - at * pitch))
    return links


def _tree(tiers: Sequence[SwitchDim]) -> NetworkMap:
    """Chips in a row at the foot, a row of switches above for each tier, inner ones first."""
    inner = [d for d in reversed(tiers) if d.size > 1] or list(tiers[-1:])
    chips = inner[-1].size * inner[-1].unit_chips
    node = inner[0].size * inner[0].unit_chips
    places: list[Point] = [(i + 0.4 * (i // node), 0.0) for i in range(chips)]
    names = list(map(str, range(chips)))
    links: list[tuple[int, int]] = []
    for height, tier in enumerate(inner, start=1):
        width = tier.size * tier.unit_chips
        for first in range(0, chips, width):
            middle = (places[first][0] + places[first + width - 1][0]) / 2
            links += [(chip, len(places)) for chip in range(first, first + width)]
            places.append((middle, -1.35 * height))
            names.append(tier.name)
    return NetworkMap("tree", tuple(places), tuple(names), chips, tuple(links))

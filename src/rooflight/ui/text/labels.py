"""Where to put labels so that they cover neither each other nor the drawing.

In: an anchor and a size per label, and the points of the drawing. Out: a box per label. Greedy:
each label takes the best of a few places around its anchor, nearest first.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

_LINE_HEIGHT = 17.0  # of a column of labels
_DIRECTIONS = ((1, -1), (-1, -1), (1, 1), (0, -1), (0, 1), (-1, 1), (1, 0), (-1, 0))
_DISTANCES = (9, 18, 28, 40, 54, 72)


@dataclass(frozen=True, slots=True)
class Box:
    """An upright rectangle, y growing downwards."""

    x: float
    y: float
    width: float
    height: float

    @property
    def right(self) -> float:
        return self.x + self.width

    @property
    def foot(self) -> float:
        return self.y + self.height

    @property
    def middle(self) -> float:
        return self.x + self.width / 2

    def at(self, across: float, up: float) -> tuple[float, float]:
        """The point at these shares of the width and of the height, 0 at the left and the foot."""
        return self.x + across * self.width, self.foot - up * self.height

    def overlap(self, other: "Box") -> float:
        """Area shared with another box."""
        across = min(self.right, other.right) - max(self.x, other.x)
        down = min(self.foot, other.foot) - max(self.y, other.y)
        return max(across, 0.0) * max(down, 0.0)

    def holds(self, x: float, y: float, margin: float = 3) -> bool:
        """Whether a point is inside, or within `margin` of it."""
        inside_x = self.x - margin <= x <= self.right + margin
        return inside_x and self.y - margin <= y <= self.foot + margin

    def nearest(self, x: float, y: float) -> tuple[float, float]:
        """The point of this box closest to another, where a leader line ends."""
        inside_x = min(max(x, self.x), self.right)
        return inside_x, min(max(y, self.y), self.foot)


@dataclass(frozen=True, slots=True)
class Anchor:
    """The point a label belongs to, and the size of its text."""

    x: float
    y: float
    width: float
    height: float


def place_labels(
    anchors: Sequence[Anchor], *, drawing: Sequence[tuple[float, float]], frame: Box
) -> list[Box]:
    """One box for each anchor, inside `frame` and clear of `drawing` where there is room."""
    taken: list[Box] = []
    lines = list(drawing)
    for anchor in anchors:
        places = _places(anchor)
        inside = [box for box in places if _inside(box, frame)]
        best = min(inside or places, key=lambda box: _cover(anchor, box, taken, lines))
        taken.append(best)
        lines += _leader_dots(anchor, best)
    return taken


def _places(anchor: Anchor) -> list[Box]:
    return [
        Box(
            anchor.x + dx * distance - (1 - dx) / 2 * anchor.width,
            anchor.y + dy * distance * 0.7 - (1 - dy) / 2 * anchor.height,
            anchor.width,
            anchor.height,
        )
        for distance in _DISTANCES
        for dx, dy in _DIRECTIONS
    ]


def _inside(box: Box, frame: Box) -> bool:
    fits_x = frame.x <= box.x and box.right <= frame.right
    return fits_x and frame.y <= box.y and box.foot <= frame.foot


def _leader_dots(anchor: Anchor, box: Box) -> list[tuple[float, float]]:
    """Points on the way from a mark to its label, the mark itself left out."""
    end_x, end_y = box.nearest(anchor.x, anchor.y)
    steps = [i / 8 for i in range(2, 9)]
    return [(anchor.x + (end_x - anchor.x) * t, anchor.y + (end_y - anchor.y) * t) for t in steps]


def _cover(
    anchor: Anchor, box: Box, taken: Sequence[Box], lines: Sequence[tuple[float, float]]
) -> float:
    """How bad a place is: labels it covers or its leader crosses, then lines it covers."""
    covered = sum(box.overlap(other) for other in taken)
    crossed = sum(other.holds(*dot) for other in taken for dot in _leader_dots(anchor, box))
    return 10 * (covered + crossed) + sum(box.holds(x, y) for x, y in lines)


def spread(heights: Sequence[float], *, low: float, high: float) -> list[float]:
    """Moves labels apart by as little as needed, in their order, within a frame.

    >>> spread([100, 104, 300], low=0, high=400)
    [100, 117.0, 300]
    """
    placed = list(heights)
    order = sorted(range(len(placed)), key=lambda i: placed[i])
    for above, below in pairwise(order):
        placed[below] = max(placed[below], placed[above] + _LINE_HEIGHT)
    limit = high
    for i in reversed(order):
        placed[i] = max(low, min(placed[i], limit))
        limit = placed[i] - _LINE_HEIGHT
    return placed

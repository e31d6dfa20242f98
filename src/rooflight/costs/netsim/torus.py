"""`Torus`: chips as integers, directed links as integers, and who is whose neighbour.

In: a `Slice`. Chips are numbered row by row, the last axis fastest.
"""

import math
from dataclasses import dataclass

from rooflight.errors import UsageError
from rooflight.hardware.mesh import Ring
from rooflight.hardware.slice import Slice, TorusDim

TICKS_PER_S = 10**15  # time is counted in whole femtoseconds, so that equal times are equal


@dataclass(frozen=True, slots=True)
class Torus:
    """The chips of one slice and the links between them.

    >>> from rooflight.hardware.slice import parse_slice
    >>> torus = torus_of(parse_slice("v5e:4x4"))
    >>> torus.num_chips, torus.neighbour(0, dim=1, step=1), torus.position(7, dim=0)
    (16, 1, 1)
    """

    dims: tuple[TorusDim, ...]
    pitches: tuple[int, ...]  # how far apart the numbers of neighbours along a dim are
    num_chips: int

    def dim_of(self, ring: Ring) -> int:
        return next(i for i, d in enumerate(self.dims) if d.name == ring.dim)

    def position(self, chip: int, *, dim: int) -> int:
        return chip // self.pitches[dim] % self.dims[dim].size

    def neighbour(self, chip: int, *, dim: int, step: int) -> int:
        """The chip `step` links away along `dim`, around the end where the axis wraps."""
        here, size = self.position(chip, dim=dim), self.dims[dim].size
        there = (here + step) % size
        assert there == here + step or self.dims[dim].wraps, "a route leaves the slice"
        return chip + (there - here) * self.pitches[dim]

    def link(self, chip: int, *, dim: int, step: int) -> int:
        """The number of the directed link that leaves a chip this way."""
        return 2 * (len(self.dims) * chip + dim) + (step > 0)

    def member(self, chip: int, ring: Ring) -> int:
        """Which member of its own ring a chip is: 0 to ring.size - 1."""
        return self.position(chip, dim=self.dim_of(ring)) // ring.stride % ring.size

    def send_ticks(self, nbytes: float, dim: int) -> int:
        return round(nbytes / self.dims[dim].link_bytes_per_s * TICKS_PER_S)

    def flight_ticks(self, dim: int) -> int:
        return round(self.dims[dim].hop_s * TICKS_PER_S)


def torus_of(target: Slice) -> Torus:
    """The torus of a slice; chips behind switches have none."""
    dims = tuple(d for d in target.dims if isinstance(d, TorusDim))
    if not dims:
        raise UsageError(
            f"{target} has no torus, and only torus links are simulated",
            hint="name a slice of a torus, such as v5e:4x4",
        )
    pitches = tuple(math.prod(d.size for d in dims[i + 1 :]) for i in range(len(dims)))
    return Torus(dims, pitches, math.prod(d.size for d in dims))

"""`Region`: a part of the space of the search, by default all of it.

In: what is given already, such as the degrees of a scheme or a remat policy. Out: which templates,
meshes and options of the space are left to search.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from rooflight.hardware.slice import Slice
from rooflight.models.layout.rules import Layout, scheme_axes
from rooflight.plan.training.forecast.evidence import scheme_name
from rooflight.plan.training.memory.remat import Remat
from rooflight.plan.training.search.space import Meshes, every_placement

Schedule = tuple[str, int]  # by name, and its virtual stages
Sizes = Mapping[str, int]  # of a scheme, by physical dim
Ways = Mapping[tuple[str, ...], int]  # that some axes make together
_Option = TypeVar("_Option")


@dataclass(frozen=True, slots=True)
class Region:
    """What may vary; None is everything that the space has.

    Patterns, remats and schedules may be ones that the space leaves out. Where nothing must fit,
    those that hold least come first, not the fastest.
    """

    layouts: tuple[Layout, ...] | None = None
    ways: Mapping[str, Ways] = field(default_factory=dict[str, Ways])  # by layout
    remats: tuple[Remat, ...] | None = None
    schedules: tuple[Schedule, ...] | None = None
    num_microbatches: int | None = None
    far: Mapping[str, bool] = field(default_factory=dict[str, bool])  # must, or must not
    lies_on: Mapping[str, Sizes] = field(default_factory=dict[str, Sizes])  # by scheme
    must_fit: bool = True

    @property
    def is_placed(self) -> bool:
        return bool(self.ways or self.far or self.lies_on)

    def on(self, meshes: Meshes) -> npt.NDArray[np.bool_]:
        """The meshes whose axes have the sizes given for their layout; others are free."""
        result = np.ones(meshes.count, np.bool_)
        for axes, size in self.ways.get(meshes.layout.text, {}).items():
            result &= math.prod((meshes.ways(a) for a in axes), start=np.ones(1, np.int64)) == size
        for scheme in scheme_axes(meshes.layout):
            name = scheme_name(scheme)
            if name in self.far and result.any():
                result &= meshes.goes_far(scheme) == self.far[name]
            if name in self.lies_on and result.any():
                result &= meshes.lies_on(scheme, self.lies_on[name])
        return result

    def placements(self, layout: Layout, on: Slice) -> Meshes:
        """The meshes of a layout that have the sizes, whether or not they divide the model."""
        return every_placement(layout, on, lambda table: self.on(Meshes(layout, table)))

    def counts(self, every: Sequence[int]) -> list[int]:
        """The numbers of microbatches."""
        given = self.num_microbatches
        return [n for n in every if given is None or n == given]


EVERYWHERE = Region()


def or_all(given: tuple[_Option, ...] | None, every: tuple[_Option, ...]) -> tuple[_Option, ...]:
    """What is given, else all of the space."""
    return every if given is None else given

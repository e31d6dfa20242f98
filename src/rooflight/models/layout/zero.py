"""Where the optimizer keeps its part of a weight: split over data axes too (ZeRO).

In: a weight at its home. Out: the same tensor with more axes. Along a data axis a weight that is
not split is the same on every device, so each may keep and update a part of it: gradients are
scattered to the parts instead of all-reduced, and the new weights are gathered (arXiv 1910.02054).
"""

from collections.abc import Mapping

from rooflight.algebra.notation import Axes, Tensor
from rooflight.algebra.shapes import ways
from rooflight.models.layout.rules import Layout


def data_axes(layout: Layout) -> Axes:
    """Axes that split tokens: along them a replicated weight is the same on every device."""
    return (*layout.inner.get("B", ()), *layout.inner.get("T", ()))


def split_state(
    stored: Tensor, extra: Axes, *, sizes: Mapping[str, int], axes: Mapping[str, int]
) -> Tensor:
    """Puts each of the `extra` axes that is free on the first dim that it divides evenly.

    An axis that divides no dim, such as one of 35 devices, leaves the tensor as it is.

    >>> from rooflight.algebra.notation import parse_tensor
    >>> stored, sizes = parse_tensor("W[D_X,F_Y]"), {"D": 64, "F": 48}
    >>> str(split_state(stored, ("Z",), sizes=sizes, axes={"X": 4, "Y": 2, "Z": 8}))
    'W[D_XZ,F_Y]'
    >>> str(split_state(stored, ("Z",), sizes=sizes, axes={"X": 4, "Y": 2, "Z": 3}))
    'W[D_X,F_YZ]'
    """
    split = list(stored.axes)
    for axis in extra:
        if axis in stored.sharded_over or axes.get(axis, 1) == 1:
            continue
        for at, dim in enumerate(stored.dims):
            if sizes[dim] % ways((*split[at], axis), axes) == 0:
                split[at] = (*split[at], axis)
                break
    return Tensor(stored.name, stored.dims, tuple(split))

"""The slices of a chip that one would rent, from one host to a given slice.

In: a `Slice`. Out: `Slice`s of the same chip, fewest chips first, the given one last. On a torus
these are the most cubic shapes of a power of two of chips; behind switches, nodes by powers of two;
then whole slices over DCN. Shapes of other sizes exist, and are left out.
"""

import math
from collections.abc import Iterator
from dataclasses import replace

from rooflight.errors import PlacementError
from rooflight.hardware.chip import Chip, TorusSpec
from rooflight.hardware.slice import Slice, parse_slice


def slices_up_to(on: Slice) -> tuple[Slice, ...]:
    """From one host, or the given slice if that is smaller, to the given slice.

    >>> [str(s) for s in slices_up_to(parse_slice("v5p:4x4x8"))]
    ['v5p:2x2x1', 'v5p:2x2x2', 'v5p:2x2x4', 'v5p:2x4x4', 'v5p:4x4x4', 'v5p:4x4x8']
    >>> [str(s) for s in slices_up_to(parse_slice("2*v5e:2x4"))]
    ['v5e:2x4', '2*v5e:2x4']
    """
    one = replace(on, num_slices=1)
    found = [s for s in _of_one_pod(on.chip, one.num_chips) if s.num_chips < one.num_chips]
    count = 1
    while count < on.num_slices:
        found.append(replace(on, num_slices=count))
        count *= 2
    return (*found, on)


def largest_slice(chip: Chip) -> Slice:
    """The whole pod of a TPU; all nodes under one leaf switch of GPUs; else one device."""
    if chip.torus:
        return Slice(chip, chip.torus.pod_shape)
    if chip.switched:
        return Slice(chip, (chip.switched.domain_chips, chip.switched.nodes_per_leaf))
    return Slice(chip, (1,))


def _of_one_pod(chip: Chip, most: int) -> Iterator[Slice]:
    """Shapes from one host up, doubling."""
    chips = chip.host_chips
    while chips <= most:
        shape = _shape(chip, chips)
        if shape and _exists(chip, shape):
            yield Slice(chip, shape)
        chips *= 2


def _shape(chip: Chip, chips: int) -> tuple[int, ...] | None:
    if chip.torus:
        return _most_cubic(chip.torus, chip.host_shape, chips)
    if chip.switched:
        domain = chip.switched.domain_chips
        return (chips, 1) if chips <= domain else (domain, chips // domain)
    return (1,)


def _most_cubic(
    torus: TorusSpec, host_shape: tuple[int, ...], chips: int
) -> tuple[int, ...] | None:
    """Axes that are powers of two and grow; one host has a shape of its own in three dims."""
    if chips == math.prod(host_shape) and torus.dims == len(host_shape) == 3:
        return host_shape
    shape = [1] * torus.dims
    at = 0
    while math.prod(shape) < chips:
        at = min(range(torus.dims), key=lambda i: (shape[i], -i))
        shape[at] *= 2
    return tuple(shape) if math.prod(shape) == chips else None


def _exists(chip: Chip, shape: tuple[int, ...]) -> bool:
    try:
        parse_slice(f"{chip.name}:{'x'.join(map(str, shape))}")
    except PlacementError:
        return False
    return True

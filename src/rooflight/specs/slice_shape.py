"""The shape of a slice of which only the number of chips is known.

In: a chip and a number. Out: sizes, or a `PlacementError` that names the nearest numbers which have
a shape. Behind switches these are whole domains. On a torus they are the shapes that Google lists,
and where it lists several of one size its default, the one most like a cube:
https://cloud.google.com/tpu/docs/types-topologies (2026-11-17).
"""

import math
from collections.abc import Iterable

from rooflight.errors import PlacementError
from rooflight.specs.chip import Chip, TorusSpec

_FEWEST = 4  # chips of a slice that is larger than one


def shape_of_chips(chip: Chip, chips: int) -> tuple[int, ...]:
    """The shape that so many chips usually have.

    >>> from rooflight.specs.catalog import load_chip
    >>> shape_of_chips(load_chip("h100"), 2048), shape_of_chips(load_chip("v5p"), 384)
    ((8, 256), (4, 8, 12))
    """
    if chip.torus and chip.torus.dims > 1:
        return standard_shape(chip.torus, chips) or _refuse(chip, chip.torus, chips)
    domain = chip.switched.domain_chips if chip.switched else chips
    if chips <= domain:
        return (chips,)
    if chips % domain:
        below = chips // domain
        near = " or ".join(f"{chip.name}:{_text(_domains(domain, n))}" for n in (below, below + 1))
        raise PlacementError(
            f"{chips} {chip.title} are not whole nodes of {domain}", hint=f"write {near}"
        )
    return _domains(domain, chips // domain)


def _domains(domain: int, count: int) -> tuple[int, ...]:
    return (domain, count) if count > 1 else (domain,)


def standard_shape(torus: TorusSpec, chips: int) -> tuple[int, ...] | None:
    """The torus of so many chips; None where no slice has just as many.

    Whole cubes lie together as nearly as a cube as they can. Fewer chips, and all on a flat torus,
    are a power of two whose axes are as equal as they can be, longer ones last.
    """
    cube = torus.wrap_cube
    if cube and chips % cube**torus.dims == 0:
        boxes = _boxes(chips // cube**torus.dims, torus.dims)
        shape = tuple(cube * n for n in min(boxes, key=lambda box: (sum(box), max(box))))
    elif chips & (chips - 1) or 1 < chips < _FEWEST:
        return None
    else:
        shape = _doubled(torus.dims, chips)
    longest = torus.max_axis or max(torus.pod_shape)
    fits = chips <= math.prod(torus.pod_shape) and max(shape) <= longest
    return shape if fits else None


def _boxes(number: int, count: int, least: int = 1) -> Iterable[tuple[int, ...]]:
    """Every rising way to write a number as a product of `count` factors."""
    if count == 1:
        yield (number,)
        return
    for first in range(least, math.floor(number ** (1 / count) + 1e-9) + 1):
        if number % first == 0:
            yield from ((first, *rest) for rest in _boxes(number // first, count - 1, first))


def _doubled(dims: int, chips: int) -> tuple[int, ...]:
    """One host of a three-dimensional torus lies flat: 2x2x1; all others have the longest last."""
    shape = [1] * dims
    while math.prod(shape) < chips:
        shape[shape.index(min(shape))] *= 2
    return tuple(shape) if chips == _FEWEST else tuple(sorted(shape))


def _refuse(chip: Chip, torus: TorusSpec, chips: int) -> tuple[int, ...]:
    pod = math.prod(torus.pod_shape)
    if chips > pod:
        raise PlacementError(
            f"the largest {chip.title} slice has {pod} chips, not {chips}",
            hint="use several slices over DCN, such as"
            f" {math.ceil(chips / pod)}*{chip.name}:{_text(torus.pod_shape)}",
        )
    below = next(s for n in range(chips, 0, -1) if (s := standard_shape(torus, n)))
    above = next((s for n in range(chips, pod + 1) if (s := standard_shape(torus, n))), None)
    near = " or ".join(f"{chip.name}:{_text(shape)}" for shape in (below, above) if shape)
    raise PlacementError(f"no {chip.title} slice has just {chips} chips", hint=f"write {near}")


def _text(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))

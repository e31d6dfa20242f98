"""Shapes in whole tiles: memory and matrix units hold nothing smaller."""

from collections.abc import Sequence

from rooflight.errors import UsageError


def padded_shape(shape: Sequence[int], tile: Sequence[int]) -> tuple[int, ...]:
    """Rounds the last dims of a shape up to whole tiles: ceil(n / t) * t each (book ch. 9).

    A tile with fewer dims than the shape leaves the outer ones alone. It stops holding for nested
    tiles such as T(8,128)(2,1), where a second tiling packs narrow elements inside the first.

    >>> padded_shape((3, 5), (2, 2)), padded_shape((7, 3, 5), (2, 2))
    ((4, 6), (7, 4, 6))
    """
    outer = len(shape) - len(tile)
    if outer < 0 or min(tile, default=1) < 1:
        raise UsageError(
            f"a shape {tuple(shape)} cannot lie in tiles of {tuple(tile)}",
            hint="give a tile of positive sizes with at most as many dims as the shape",
        )
    inner = (-(-n // t) * t for n, t in zip(shape[outer:], tile, strict=True))
    return (*shape[:outer], *inner)

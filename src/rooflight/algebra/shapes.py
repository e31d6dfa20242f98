"""Sizes: what one device holds of a tensor, in elements, shapes and bytes.

Dim and axis sizes come as mappings from name to whole number.
"""

import math
from collections.abc import Mapping, Sequence

from rooflight.algebra.notation import Tensor
from rooflight.dtypes import Dtype
from rooflight.errors import ShardingError, UnknownNameError

_FLAG = {"dim": "dims", "mesh axis": "mesh"}


def _get(sizes: Mapping[str, int], name: str, kind: str) -> int:
    if name not in sizes:
        raise UnknownNameError(kind, name, sizes, hint=f"give its size: --{_FLAG[kind]} {name}=...")
    return sizes[name]


def ways(axes: Sequence[str], axis_sizes: Mapping[str, int]) -> int:
    """Number of shards that a list of axes makes."""
    count = 1  # a loop: a search asks this more often than anything else
    for axis in axes:
        count *= _get(axis_sizes, axis, "mesh axis")
    return count


def local_shape(
    tensor: Tensor, dim_sizes: Mapping[str, int], axis_sizes: Mapping[str, int]
) -> tuple[int, ...]:
    """The block one device holds.

    >>> from rooflight.algebra.notation import parse_tensor
    >>> local_shape(parse_tensor("A[I_XY,J]"), {"I": 128, "J": 2048}, {"X": 2, "Y": 8, "Z": 2})
    (8, 2048)
    """
    shape: list[int] = []
    for dim, axes in zip(tensor.dims, tensor.axes, strict=True):
        size, shards = _get(dim_sizes, dim, "dim"), ways(axes, axis_sizes)
        if size % shards:
            raise ShardingError(
                f"{tensor}: dim {dim}={size} does not split {shards} ways"
                f" over {'*'.join(f'{a}={axis_sizes[a]}' for a in axes)}",
                hint=f"pad {dim} to {-(-size // shards) * shards}, or split it by"
                f" {math.gcd(size, shards)}",
            )
        shape.append(size // shards)
    return tuple(shape)


def device_bytes(
    tensor: Tensor, dim_sizes: Mapping[str, int], axis_sizes: Mapping[str, int], dtype: Dtype
) -> int:
    """Bytes one device holds.

    >>> from rooflight.algebra.notation import parse_tensor
    >>> from rooflight.dtypes import DTYPES
    >>> mesh = {"X": 2, "Y": 8, "Z": 2}
    >>> device_bytes(parse_tensor("A[I_XY,J]"), {"I": 128, "J": 2048}, mesh, DTYPES["int8"])
    16384
    """
    return dtype.nbytes(math.prod(local_shape(tensor, dim_sizes, axis_sizes)))


def total_bytes(
    tensor: Tensor, dim_sizes: Mapping[str, int], axis_sizes: Mapping[str, int], dtype: Dtype
) -> int:
    """Bytes over all devices of the mesh, every replica counted.

    >>> from rooflight.algebra.notation import parse_tensor
    >>> from rooflight.dtypes import DTYPES
    >>> mesh = {"X": 2, "Y": 8, "Z": 2}
    >>> total_bytes(parse_tensor("A[I_XY,J]"), {"I": 128, "J": 2048}, mesh, DTYPES["int8"])
    524288
    """
    devices = math.prod(axis_sizes.values())
    return devices * device_bytes(tensor, dim_sizes, axis_sizes, dtype)

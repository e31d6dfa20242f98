# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
# jax annotates its own functions only in part.
"""Devices of a target that need no chip, in the order of our placement. Runs in a child process.

The place of a chip in the mesh follows from its coordinates on the slice, so a collective along a
mesh axis runs along the physical dims that `specs.Mesh` says.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh

from rooflight.compile.aot.target import CORE_AXIS, CompileTarget, register_cuda
from rooflight.hardware.mesh import Segment


def target_mesh(target: CompileTarget, *, explicit: bool = False) -> Mesh:
    """The jax mesh of a target, over devices that exist only for the compiler."""
    if target.platform == "cuda":
        register_cuda()
    topology = topologies.get_topology_desc(target.topology, target.platform, **target.options)
    return placed_mesh(target, topology.devices, explicit=explicit)


def placed_mesh(target: CompileTarget, found: Sequence[Any], *, explicit: bool = False) -> Mesh:
    """The jax mesh of a target over its devices, real ones or those of the compiler."""
    devices = sorted(found, key=_place)
    cores, rest = divmod(len(devices), target.num_chips)
    assert rest == 0, f"{len(devices)} devices on {target.num_chips} chips"
    grid = np.array(devices, dtype=object).reshape(*target.dims.values(), cores)
    placed = place_devices(grid, target.dims, target.axes)
    names = tuple(target.axes)
    if cores > 1:
        names = (*names, CORE_AXIS)
    else:
        placed = placed.reshape(placed.shape[:-1])
    kind = AxisType.Explicit if explicit else AxisType.Auto
    return Mesh(placed, names, axis_types=(kind,) * len(names))


def _place(device: Any) -> tuple[int, ...]:
    """Slice, coordinates, core; a GPU has an id alone. (Any: jax does not type its devices.)"""
    if device.platform != "tpu":
        return (device.id,)
    return (getattr(device, "slice_index", None) or 0, *device.coords, device.core_on_chip)


def place_devices(
    grid: "np.ndarray[tuple[int, ...], np.dtype[np.object_]]",
    dims: Mapping[str, int],
    axes: Mapping[str, Sequence[Segment]],
) -> "np.ndarray[tuple[int, ...], np.dtype[np.object_]]":
    """Devices by physical dims (and core) -> devices by mesh axes (and core).

    Each dim is cut into the segments on it, widest stride first; each axis joins its segments.
    """
    cut = [
        segment
        for dim in dims
        for segment in sorted(
            (s for parts in axes.values() for s in parts if s.dim == dim), key=lambda s: -s.stride
        )
    ]
    cores = grid.shape[-1]
    fine = grid.reshape(*(segment.size for segment in cut), cores)
    order = [cut.index(segment) for parts in axes.values() for segment in parts]
    sizes = [math.prod(s.size for s in parts) for parts in axes.values()]
    return fine.transpose(*order, len(cut)).reshape(*sizes, cores)

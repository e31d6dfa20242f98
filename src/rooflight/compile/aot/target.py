"""`CompileTarget`: the slice and mesh as XLA names them, with nothing of jax in it.

In: a `specs.Mesh`. Out: a topology name, its options, and where each mesh axis lies, so that a
child process can build the same devices in the same order. Wraparound is always said: the
compiler's own default is a mesh without it, even for a whole pod.

GPU targets: what XLA must be told of a GPU that is not there. Memory and collectives of such a
compile can be used. Times cannot: without a device the compiler tunes no matmul.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.resources import files
from importlib.util import find_spec

from rooflight.errors import UsageError
from rooflight.hardware.chip import Chip
from rooflight.hardware.mesh import Mesh, Segment
from rooflight.hardware.slice import Slice

_FOLDER = files("rooflight.compile.aot") / "gpu_targets"
_PLUGINS = ("jax_plugins.xla_cuda12", "jax_plugins.xla_cuda13")

Option = str | int | bool | list[int] | list[bool]

_TPU_NAMES = ("v2", "v3", "v4", "v5e", "v5p", "v6e", "tpu7x")  # as libtpu spells them
_MERGED_CORES = {"v4": "megacore"}  # two cores that can be one device are asked to
_TOPOLOGY_DIMS = 3
CORE_AXIS = "core"  # the last mesh axis where a chip is several devices
_CORES = {"v2": 2, "v3": 2, "tpu7x": 2}  # those, and how many
_USABLE = "hbm_usable_bytes"


@dataclass(frozen=True, slots=True)
class CompileTarget:
    """What to compile for. `dims` are the physical dims, outermost first; `axes` lie on them."""

    platform: str
    topology: str
    options: Mapping[str, Option]
    dims: Mapping[str, int]
    axes: Mapping[str, tuple[Segment, ...]]

    @property
    def num_chips(self) -> int:
        return math.prod(self.dims.values())

    @property
    def dcn(self) -> dict[str, int]:
        """The mesh axes that go from slice to slice, and how many slices each spans."""
        parts = {a: [s.size for s in parts if s.dim == "dcn"] for a, parts in self.axes.items()}
        return {axis: math.prod(sizes) for axis, sizes in parts.items() if sizes}


def device_axes(mesh: Mesh) -> dict[str, int]:
    """The axes that the jax mesh of a target has."""
    cores = _CORES.get(mesh.slice.chip.name)
    return mesh.axes | ({CORE_AXIS: cores} if cores else {})


def device_chip(mesh: Mesh, axes: Mapping[str, int]) -> Chip:
    """A device as a chip: where the jax mesh has several of one chip, a share of all it has."""
    chip, count = mesh.slice.chip, math.prod(n for axis, n in axes.items() if axis not in mesh.axes)
    usable = {name: n / count if name == _USABLE else n for name, n in chip.detail.items()}
    return replace(
        chip,
        flops={dtype: rate / count for dtype, rate in chip.flops.items()},
        hbm_bytes=chip.hbm_bytes and chip.hbm_bytes // count,
        hbm_bytes_per_s=chip.hbm_bytes_per_s and chip.hbm_bytes_per_s / count,
        detail=usable,
    )


def usable_bytes(mesh: Mesh, axes: Mapping[str, int]) -> int | None:
    """What the compiler lets a program use of a device, if the catalog knows; all of a GPU."""
    device = device_chip(mesh, axes)
    usable = device.detail.get(_USABLE) or (device.hbm_bytes if device.kind == "gpu" else None)
    return int(usable) if usable else None


def target_names() -> dict[str, list[str]]:
    """The chips that have a compiler, by kind."""
    return {"tpu": list(_TPU_NAMES), "gpu": gpu_names()}


def make_target(mesh: Mesh) -> CompileTarget:
    """The target of a mesh on its slice."""
    on = mesh.slice
    dims = {d.name: d.size for d in on.dims}
    if on.chip.kind == "gpu":
        return CompileTarget("cuda", on.chip.name, gpu_options(on), dims, mesh.segments)
    if on.chip.name not in _TPU_NAMES:
        raise UsageError(
            f"no compiler knows the chip {on.chip.name!r}, so {on} cannot be compiled for",
            hint=f"choose one of {', '.join(_TPU_NAMES)}",
        )
    shape = "x".join(map(str, on.shape))
    return CompileTarget("tpu", f"{on.chip.name}:{shape}", _tpu_options(on), dims, mesh.segments)


def _tpu_options(on: Slice) -> dict[str, Option]:
    wraps = [*on.wraps] + [False] * (_TOPOLOGY_DIMS - len(on.shape))
    options: dict[str, Option] = {"wrap": wraps}
    if on.num_slices > 1:
        options["num_slices"] = on.num_slices
    if on.chip.name in _MERGED_CORES:
        options["chip_config_name"] = _MERGED_CORES[on.chip.name]
    padded = [*on.shape] + [1] * (_TOPOLOGY_DIMS - len(on.shape))
    host = [math.gcd(2, padded[0]), math.gcd(2, padded[1]), 1]
    if host[0] * host[1] < 4:  # the compiler's own host is 2x2x1 and must divide the slice
        options["chips_per_host_bounds"] = host
    return options


def gpu_names() -> list[str]:
    """The GPUs that have a description here."""
    return sorted(f.name.removesuffix(".txtpb") for f in _FOLDER.iterdir() if "txtpb" in f.name)


def gpu_options(on: Slice) -> dict[str, str | int | bool | list[int] | list[bool]]:
    """The device description and the shape: hosts of a slice, devices of a host."""
    if on.chip.name not in gpu_names():
        raise UsageError(
            f"there is no description of {on.chip.name} for the compiler",
            hint=f"choose one of {', '.join(gpu_names())}",
        )
    hosts = on.chips_per_slice // on.shape[0]
    return {
        "target_config": (_FOLDER / f"{on.chip.name}.txtpb").read_text(),
        "topology": f"{on.num_slices}x{hosts}x{on.shape[0]}",
    }


def register_cuda() -> None:
    """Makes jax know the CUDA compiler; it does so by itself only where a GPU is."""
    for name in _PLUGINS:
        if find_spec(name):
            import_module(name).initialize()
            return

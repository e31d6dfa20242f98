"""GPU targets: what XLA must be told of a GPU that is not there.

Memory and collectives of such a compile can be used. Times cannot: without a device the compiler
tunes no matmul.
"""

from importlib import import_module
from importlib.resources import files
from importlib.util import find_spec

from rooflight.errors import UsageError
from rooflight.hardware.slice import Slice

_FOLDER = files("rooflight.compile.aot") / "gpu_targets"
_PLUGINS = ("jax_plugins.xla_cuda12", "jax_plugins.xla_cuda13")


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

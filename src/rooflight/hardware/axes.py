"""A mesh and some of its axes as a person names them: `--mesh` and `--axes`, either left out."""

from rooflight.errors import UsageError
from rooflight.hardware.mesh import Mesh, parse_mesh
from rooflight.hardware.slice import Slice


def mesh_of(text: str | None, on: Slice) -> Mesh:
    """The mesh of `--mesh`; without it, one axis (X, Y, Z, W) for each physical dim."""
    sizes = [dim.size for dim in on.dims if dim.size > 1] or [1]
    default = ",".join(f"{name}={size}" for name, size in zip("XYZW", sizes, strict=False))
    return parse_mesh(default if text is None else text, on=on)


def axes_of(text: str | None, mesh: Mesh) -> list[str]:
    """The axes of `--axes` (`X`, `X,Y`, or `XY` for one-letter names); without it, all."""
    if text is None:
        return list(mesh.axes)
    axes = [text] if text in mesh.axes else text.split(",") if "," in text else list(text)
    for axis in axes:
        mesh.size(axis)  # an unknown axis gets its did-you-mean here
    if not axes or len(set(axes)) < len(axes):
        raise UsageError(
            f"axes {text!r} must name each axis once", hint=f"write {','.join(mesh.axes)}"
        )
    return axes

"""`Roles`: what each mesh axis of a plan does, in the words of its layout.

In: a layout and a mesh. Out: the schemes that every axis serves. Other frameworks have one
degree for each kind of parallelism, so an axis is found there by its set of schemes.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rooflight.algebra.notation import Axes, parse_axes
from rooflight.hardware.mesh import Mesh
from rooflight.interop.framework import FrameworkSpec, Loss
from rooflight.models.layout.rules import parse_layout

OUTER = ("dcn", "spine", "leaf")  # physical dims between slices or nodes, outermost first
_COMMA = re.compile(r",(?![^{}]*\})")  # not those inside {data,model}


@dataclass(frozen=True, slots=True)
class Roles:
    """The schemes of every mesh axis of more than one chip; none for an axis that idles."""

    mesh: Mesh
    schemes: Mapping[str, frozenset[str]]

    def serving(self, *names: str) -> Axes:
        """The axes that serve one of these schemes, alone or with others."""
        return tuple(axis for axis, served in self.schemes.items() if served & set(names))

    def ways(self, axes: Iterable[str]) -> int:
        return math.prod(self.mesh.size(axis) for axis in axes)

    def outer_ways(self, axes: Iterable[str]) -> int:
        """The part of the axes that crosses slices or nodes."""
        parts = [part for axis in axes for part in self.mesh.segments[axis]]
        return math.prod(part.size for part in parts if part.dim in OUTER)


def read_roles(layout: str, mesh: Mesh) -> Roles:
    """The schemes of each axis.

    >>> from rooflight.hardware.mesh import parse_mesh
    >>> roles = read_roles("fsdp=X,sp=Y,ep=X", parse_mesh("X=4,Y=4", on="v5e:4x4"))
    >>> sorted(roles.schemes["X"]), roles.serving("sp", "tp")
    (['ep', 'fsdp'], ('Y',))
    """
    found: dict[str, set[str]] = {axis: set() for axis, n in mesh.axes.items() if n > 1}
    for part in _COMMA.split(parse_layout(layout).text):
        scheme, _, names = part.partition("=")
        for axis in parse_axes(names):
            mesh.size(axis)  # an axis that the mesh does not have gets its did-you-mean here
            found.get(axis, set()).add(scheme)
    return Roles(mesh, {axis: frozenset(schemes) for axis, schemes in found.items()})


def axes_by_key(framework: FrameworkSpec, roles: Roles) -> tuple[dict[str, Axes], list[Loss]]:
    """The mesh axes behind each of a framework's degrees, and what they do not say."""
    found: dict[str, Axes] = {}
    losses: list[Loss] = []
    for axis, schemes in roles.schemes.items():
        what = _written(axis, schemes)
        row = framework.axis_row(schemes)
        if row is None:
            because = f"{framework.title} has no such axis; nothing is written for its"
            losses.append(Loss(what, f"{because} {roles.mesh.size(axis)} ways"))
            continue
        losses += [Loss(what, row.differs)] if row.differs else []
        for key in row.keys:
            found[key] = (*found.get(key, ()), axis)
    return found, losses


def _written(axis: str, schemes: frozenset[str]) -> str:
    name = axis if len(axis) == 1 else f"{{{axis}}}"
    return ",".join(f"{scheme}={name}" for scheme in sorted(schemes)) or f"mesh axis {axis}"

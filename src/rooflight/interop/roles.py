"""`Roles`: what each mesh axis of a plan does, in the words of its layout.

In: a layout and a mesh. Out: the schemes that every axis serves. Other frameworks have one
degree for each kind of parallelism, so an axis is found there by its set of schemes.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from rooflight.algebra.notation import Axes, parse_axes
from rooflight.errors import ParseError, UsageError
from rooflight.hardware.mesh import Mesh
from rooflight.interop.framework import FrameworkSpec, Loss, Settings, settings_of
from rooflight.models.layout.rules import parse_layout, split_mode
from rooflight.models.presets import load_model, model_names
from rooflight.models.spec import ModelSpec
from rooflight.plan.file.record import Plan, plan_hash

_SCHEDULE = re.compile(
    r"(?:([\w-]+), (\d{1,6})(?: x (\d{1,6}))? stages, )?(?:(\d{1,9}) microbatches)?"
)

OUTER = ("dcn", "spine", "leaf")  # physical dims between slices or nodes, outermost first
_COMMA = re.compile(r",(?![^{}]*\})")  # not those inside {data,model}


@dataclass(frozen=True, slots=True)
class Roles:
    """The schemes of every mesh axis of more than one chip; none for an axis that idles."""

    mesh: Mesh
    schemes: Mapping[str, frozenset[str]]
    modes: Mapping[str, str] = field(default_factory=dict[str, str])  # of schemes: cp is a ring

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
    read = parse_layout(layout)
    for part in _COMMA.split(read.text):
        scheme, _, names = part.partition("=")
        for axis in parse_axes(split_mode(scheme, names)[0]):
            mesh.size(axis)  # an axis that the mesh does not have gets its did-you-mean here
            found.get(axis, set()).add(scheme)
    return Roles(mesh, {axis: frozenset(s) for axis, s in found.items()}, read.modes)


def axes_by_key(framework: FrameworkSpec, roles: Roles) -> tuple[dict[str, Axes], list[Loss]]:
    """The mesh axes behind each of a framework's degrees, and what they do not say."""
    found: dict[str, Axes] = {}
    losses: list[Loss] = []
    for axis, schemes in roles.schemes.items():
        name = axis if len(axis) == 1 else f"{{{axis}}}"
        what = ",".join(f"{scheme}={name}" for scheme in sorted(schemes)) or f"mesh axis {axis}"
        row = framework.axis_row(schemes)
        if row is None:
            because = f"{framework.title} has no such axis; nothing is written for its"
            losses.append(Loss(what, f"{because} {roles.mesh.size(axis)} ways"))
            continue
        losses += [Loss(what, row.differs)] if row.differs else []
        for key in row.keys:
            found[key] = (*found.get(key, ()), axis)
    return found, losses


def policies(framework: FrameworkSpec, plan: Plan, roles: Roles) -> tuple[Settings, list[Loss]]:
    """Settings of the remat policy, the recipe, the dtype, ZeRO and the pipeline's schedule."""
    asked = [("remats", plan.remat, "remat"), ("recipes", plan.recipe, "recipe")]
    asked += [("dtypes", plan.dtype, "dtype")]
    if roles.serving("dp", "cp", "ulysses"):  # else every weight is split already
        asked += [("zeros", str(plan.zero), "zero stage")]
    if plan.schedule is not None:
        asked += [("schedules", plan.schedule, "schedule")]
    settings: Settings = {}
    losses = _hardware(framework, roles)
    for table, name, what in asked:
        found, lost = settings_of(framework, table, name, what=what)
        settings |= found
        losses += lost
    return settings, losses


def _hardware(framework: FrameworkSpec, roles: Roles) -> list[Loss]:
    where = roles.mesh.slice
    if framework.has_tpus or not where.chip.torus:
        return []
    return [Loss(f"slice {where}", f"{framework.title} runs on GPUs")]


def their_model(framework: FrameworkSpec, model: ModelSpec) -> str | None:
    """The framework's name of a model, if it is one of ours, unchanged."""
    known = model.name in framework.models and model.name in model_names()
    return framework.models[model.name] if known and load_model(model.name) == model else None


def title(plan: Plan) -> str:
    """One line that says which plan a file was made from."""
    where = f"{plan.layout} with {plan.mesh}"
    return f"rooflight plan {plan_hash(plan)}: {plan.model.name} on {plan.slice}, {where}"


def row_of_plan(plan: Plan, row: int) -> Plan:
    """A row of the table that `plan train` prints: 1 is the plan, its alternatives follow."""
    if not 1 <= row <= len(plan.alternatives) + 1:
        raise UsageError(
            f"row {row} must be one of the {len(plan.alternatives) + 1} of the plan",
            hint="1 is the plan itself, its alternatives follow as `rooflight plan train` has them",
        )
    if row == 1:
        return plan
    other = plan.alternatives[row - 2]
    match = _SCHEDULE.fullmatch(other.schedule)
    if match is None:
        raise ParseError(
            f"schedule {other.schedule!r} must be as `1f1b, 4 stages, 32 microbatches`",
            hint="give the file that the verb plan wrote",
        )
    return replace(
        plan,
        layout=other.layout,
        mesh=other.mesh,
        remat=other.remat,
        schedule=match[1],
        stages=int(match[2] or 1),
        virtual=int(match[3] or 1),
        microbatches=int(match[4] or 1),
        alternatives=(),
    )

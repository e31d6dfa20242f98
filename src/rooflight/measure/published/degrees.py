"""The parallelism of a row: degrees as published, then axes of a mesh and a layout over them.

Frameworks write degrees; a mesh has axes. Outermost first: P pipeline, R replicas, X and E the
rest of the data ways (E those that also hold experts), C context, Y tensor.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from rooflight.errors import PlacementError, UnknownNameError, UsageError
from rooflight.hardware.calibration import measured_chips
from rooflight.hardware.catalog import load_chip
from rooflight.hardware.chip import Chip, TorusSpec
from rooflight.hardware.mesh import Mesh, Place, place
from rooflight.hardware.slice import Slice
from rooflight.measure.published.rows import PublishedRun

_SHAPE = re.compile(r"\d{1,6}(x\d{1,6}){0,3}")


@dataclass(frozen=True, slots=True)
class MeasuredChip:
    """A chip, and how many devices the software sees in one."""

    chip: Chip
    devices: int = 1


@dataclass(frozen=True, slots=True)
class Degrees:
    """How many ways each scheme splits; replicas times shards are the data ways."""

    tensor: int = 1
    stages: int = 1
    virtual: int = 1
    context: int = 1
    experts: int = 1
    replicas: int = 1
    shards: int = 1
    is_sharded: bool = False  # weights are split over the shards
    splits_sequence: bool = True  # the stream between tensor-parallel matmuls

    @property
    def data(self) -> int:
        return self.replicas * self.shards


def read_degrees(row: PublishedRun, chips: int, slices: int, devices: int) -> Degrees:
    """Reads the layout of a row; without one, weights are split over the chips of each slice."""
    layout = row.table("layout")
    given = {k: v for k, v in layout.items() if isinstance(v, int) and not isinstance(v, bool)}
    tensor, stages = given.get("tp", 1), given.get("pp", 1)
    if "model_parallel" in given:  # tensor parallelism fills a node, then come stages
        tensor = min(8, given["model_parallel"])
        stages = given["model_parallel"] // tensor
    context = given.get("cp", 1)
    data, rest = divmod(chips, tensor * stages * context)
    if rest or not data:
        raise UsageError(
            f"{tensor * stages * context} ways of tensors, stages and contexts do not divide"
            f" {chips} chips",
            hint="check layout: and chips:",
        )
    stated = given.get("fsdp", 1) * given.get("fsdp_transpose", 1)
    stated //= devices if "over" in layout and stated % devices == 0 else 1
    shards, is_sharded = data, layout.get("fsdp") is True or layout.get("zero") == 3
    if "fsdp" in given:
        shards, is_sharded = math.gcd(stated, data), stated > 1
    elif not layout:
        shards, is_sharded = data // slices, True
    return Degrees(
        tensor=tensor,
        stages=stages,
        virtual=given.get("vp", 1),
        context=context,
        experts=given.get("ep", 1),
        replicas=data // shards,
        shards=shards,
        # With stages, weights stay gathered from one microbatch to the next: only state is split.
        is_sharded=is_sharded and stages == 1,
        splits_sequence=layout.get("sp") is not False,
    )


def mesh_axes(degrees: Degrees, num_experts: int) -> tuple[dict[str, int], str]:
    """The axes, outermost first, and the layout over them.

    >>> mesh_axes(Degrees(tensor=2, stages=4, shards=8, experts=4), 64)
    ({'P': 4, 'X': 2, 'E': 4, 'Y': 2}, 'pp=P,dp=XE,ep=E,sp=Y')
    """
    ways = degrees.experts if num_experts else 1
    inside = math.gcd(ways, degrees.shards)
    axes = {
        "P": degrees.stages,
        "R": degrees.replicas,
        "X": degrees.shards // inside,
        "E": inside,
        "C": degrees.context,
        "Y": degrees.tensor,
    }
    axes = {name: size for name, size in axes.items() if size > 1} or {"X": 1}
    data = "".join(a for a in "XE" if a in axes)
    experts = _expert_axes(axes, inside, ways)
    tensor = "sp=Y" if degrees.splits_sequence else "mp=Y"
    words = [
        "pp=P" if "P" in axes else "",
        "dp=R" if "R" in axes else "",
        f"{'fsdp' if degrees.is_sharded else 'dp'}={data}" if data else "",
        f"ep={experts}" if experts else "",
        "cp=C" if "C" in axes else "",
        tensor if "Y" in axes else "",
    ]
    return axes, ",".join(w for w in words if w) or "dp=X"


def _expert_axes(axes: Mapping[str, int], inside: int, ways: int) -> str:
    """Expert ways beyond the data ways take whole axes of context and tensors."""
    left, chosen = ways // inside, "E" if "E" in axes else ""
    for axis in "CY":
        if left > 1 and axis in axes and left % axes[axis] == 0:
            left //= axes[axis]
            chosen += axis
    if left > 1:
        raise UsageError(
            f"{ways} ways of experts are no product of the other ways", hint="check ep:"
        )
    return chosen


def slice_of(row: PublishedRun, found: MeasuredChip, chips: int, slices: int) -> Slice:
    """The slice of a row; a topology that is not stated is the most compact one."""
    chip, inside = found.chip, chips // slices
    if chip.torus:
        shape = stated_shape(row)
        if math.prod(shape) != inside or len(shape) != chip.torus.dims:
            shape = compact_shape(chip.torus, inside)
        return Slice(chip, shape, slices)
    domain = chip.switched.domain_chips if chip.switched else 1
    gpus = max(n for n in range(1, min(domain, chips) + 1) if chips % n == 0)
    return Slice(chip, (gpus, chips // gpus) if chips > gpus else (gpus,))


def stated_shape(row: PublishedRun) -> tuple[int, ...]:
    """The topology as a row begins it: `8x4x4`; nothing where it has none."""
    found = _SHAPE.match(str(row.fields.get("topology") or ""))
    return tuple(int(n) for n in found[0].split("x")) if found else ()


def compact_shape(torus: TorusSpec, chips: int) -> tuple[int, ...]:
    """The shape of `chips` with the shortest longest axis.

    >>> from rooflight.hardware.catalog import load_chip
    >>> torus = load_chip("v5p").torus
    >>> torus and compact_shape(torus, 128)
    (4, 4, 8)
    """
    shapes = [
        shape
        for shape in _factorings(chips, torus.dims)
        if max(shape) <= (torus.max_axis or max(torus.pod_shape))
    ]
    if not shapes:
        raise PlacementError(f"{chips} chips make no slice", hint="state its topology:")
    return min(shapes, key=lambda shape: (max(shape), shape[::-1]))


def _factorings(number: int, count: int) -> list[tuple[int, ...]]:
    """Every rising way to write a number as a product of `count` factors."""
    if count == 1:
        return [(number,)]
    found: list[tuple[int, ...]] = []
    for first in (n for n in range(1, number + 1) if number % n == 0):
        found += [(first, *rest) for rest in _factorings(number // first, count - 1)]
    return [shape for shape in found if list(shape) == sorted(shape)]


def place_axes(axes: Mapping[str, int], on: Slice) -> Mesh:
    """On a torus as `place` does; behind switches in order, so the innermost shares a node."""
    if on.chip.torus:
        return place(axes, on)
    order: tuple[Place, ...] = tuple((dim.name, None) for dim in on.dims)
    return place(axes, on, wanted={next(iter(axes)): order})


def measured_chip(name: str) -> MeasuredChip:
    """The chip of a row; a name of the catalog works too.

    >>> measured_chip("a100_40g_sxm").chip.hbm_bytes_per_s, measured_chip("tpu_v7x").devices
    (1555000000000.0, 2)
    """
    known = measured_chips()
    if name not in known:
        try:
            return MeasuredChip(load_chip(name))
        except UnknownNameError as error:
            raise UnknownNameError("chip", name, known) from error
    facts = known[name]
    chip = replace(load_chip(facts["chip"]), name=name)
    differs = {key: facts[key] for key in ("hbm_bytes", "hbm_bytes_per_s") if key in facts}
    chip = replace(chip, **differs)
    if "domain_chips" in facts and chip.switched:
        domain = replace(chip.switched, domain_chips=facts["domain_chips"])
        chip = replace(chip, switched=domain)
    return MeasuredChip(chip, facts.get("devices", 1))

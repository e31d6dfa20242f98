"""`Slice`: how many chips, wired how. Parses `v5p:16x20x28`, `2*v5e:16x16`, `h100:8x128`.

A slice is a stack of physical dims, outermost first. On a TPU these are `dcn` (slices over the
data-centre network) and the torus axes `x`, `y`, `z`; on a GPU `spine`, `leaf` and `node`.
"""

import math
import re
from dataclasses import dataclass
from functools import lru_cache

from rooflight.errors import ParseError, PlacementError
from rooflight.specs.catalog import load_chip
from rooflight.specs.chip import Chip, SwitchedSpec, TorusSpec

_SLICE = re.compile(
    r"\s*(?:(\d{1,6})\s*\*\s*)?([A-Za-z][\w-]*)(?:\s*:\s*(\d{1,6}(?:x\d{1,6}){0,3}))?\s*"
)
_TORUS_NAMES = ("x", "y", "z")


@dataclass(frozen=True, slots=True)
class TorusDim:
    """One torus axis: its length, whether its ends are joined, and its links."""

    name: str
    size: int
    wraps: bool
    link_bytes_per_s: float
    hop_s: float


@dataclass(frozen=True, slots=True)
class SwitchDim:
    """One switched tier: `size` units of `unit_chips` chips, each with an egress to the others."""

    name: str
    size: int
    unit_chips: int
    egress_bytes_per_s: float
    hop_s: float
    reduces: bool


PhysicalDim = TorusDim | SwitchDim


@dataclass(frozen=True, slots=True)
class Slice:
    """Chips of one kind in one shape, `num_slices` times over DCN.

    >>> s = parse_slice("v5p:16x20x28")
    >>> s.num_chips, s.num_hosts, str(s)
    (8960, 2240, 'v5p:16x20x28')
    """

    chip: Chip
    shape: tuple[int, ...]
    num_slices: int = 1

    def __str__(self) -> str:
        shape = "x".join(map(str, self.shape))
        count = f"{self.num_slices}*" if self.num_slices > 1 else ""
        return f"{count}{self.chip.name}:{shape}"

    @property
    def chips_per_slice(self) -> int:
        return math.prod(self.shape)

    @property
    def num_chips(self) -> int:
        return self.chips_per_slice * self.num_slices

    @property
    def num_hosts(self) -> int:
        """Hosts of all slices; a slice smaller than a host still occupies one."""
        return self.num_slices * math.ceil(self.chips_per_slice / self.chip.host_chips)

    @property
    def wraps(self) -> tuple[bool, ...]:
        """Which torus axes are rings; empty behind switches."""
        torus = self.chip.torus
        return _wraps(torus, self.shape) if torus else ()

    @property
    def dims(self) -> tuple[PhysicalDim, ...]:
        """The physical dims, outermost first."""
        torus, switched = self.chip.torus, self.chip.switched
        if torus:
            return (*self._dcn_dims(), *_torus_dims(torus, self.shape))
        if switched:
            return (*self._dcn_dims(), *_switch_dims(switched, self.shape))
        return (SwitchDim("host", 1, 1, 0.0, 0.0, reduces=False),)

    def _dcn_dims(self) -> tuple[PhysicalDim, ...]:
        if self.num_slices == 1:
            return ()
        per_host = self.chip.dcn_bytes_per_s_per_host
        if per_host is None:
            raise PlacementError(
                f"{self.chip.title} has no DCN bandwidth in its catalog, so {self} has no price",
                hint=f"use one slice, such as `{self.chip.name}:{'x'.join(map(str, self.shape))}`",
            )
        hosts = self.num_hosts // self.num_slices
        hop_s = self.chip.detail.get("dcn_hop_s", 0.0)
        egress = per_host * hosts
        return (
            SwitchDim("dcn", self.num_slices, self.chips_per_slice, egress, hop_s, reduces=False),
        )


def _wraps(torus: TorusSpec, shape: tuple[int, ...]) -> tuple[bool, ...]:
    """Whole cubes wrap on every axis (v4, v5p, 7x); an axis of 16 wraps alone (v5e, v6e)."""
    if torus.wrap_cube is not None:
        whole = all(n % torus.wrap_cube == 0 for n in shape)
        return tuple(whole for _ in shape)
    if torus.wrap_axis is not None:
        return tuple(n == torus.wrap_axis for n in shape)
    return tuple(False for _ in shape)


@lru_cache(maxsize=64)  # a search asks for the dims of its slice at every mesh
def _torus_dims(torus: TorusSpec, shape: tuple[int, ...]) -> tuple[TorusDim, ...]:
    wraps = _wraps(torus, shape)
    return tuple(
        TorusDim(_TORUS_NAMES[i], n, wraps[i], torus.link_bytes_per_s, torus.hop_s)
        for i, n in enumerate(shape)
    )


def _switch_dims(fabric: SwitchedSpec, shape: tuple[int, ...]) -> tuple[SwitchDim, ...]:
    gpus, nodes = shape[0], math.prod(shape[1:])
    node_egress = fabric.nic_bytes_per_s * gpus
    leaf = max(d for d in range(1, min(nodes, fabric.nodes_per_leaf) + 1) if nodes % d == 0)
    node = SwitchDim(
        "node", gpus, 1, fabric.chip_egress_bytes_per_s, fabric.hop_s, fabric.reduces_in_domain
    )
    dims = [node]
    if nodes > 1:
        reduces = fabric.reduces_in_fabric
        dims.insert(0, SwitchDim("leaf", leaf, gpus, node_egress, fabric.fabric_hop_s, reduces))
        if nodes > leaf:
            egress = node_egress * leaf / fabric.leaf_oversubscription
            unit, spines = gpus * leaf, nodes // leaf
            dims.insert(0, SwitchDim("spine", spines, unit, egress, fabric.fabric_hop_s, reduces))
    return tuple(dims)


def parse_slice(text: str) -> Slice:
    """Reads `[COUNT*]CHIP[:AxBxC]`; a bare chip name is one chip.

    >>> parse_slice("2*v5e:16x16").num_chips, parse_slice("h100:8x128").num_chips
    (512, 1024)
    """
    match = _SLICE.fullmatch(text)
    if match is None:
        raise ParseError(
            f"{text!r} does not name a slice", hint="write CHIP:AxB, such as v5p:4x4x4 or h100:8x16"
        )
    chip = load_chip(match[2])
    num_slices = int(match[1] or 1)
    shape = tuple(int(n) for n in match[3].split("x")) if match[3] else _one_chip(chip)
    if num_slices < 1 or min(shape) < 1:
        raise ParseError(f"{text!r} has a size of zero", hint=f"write {chip.name}:{_example(chip)}")
    _check_shape(chip, shape)
    return Slice(chip, shape, num_slices)


def _one_chip(chip: Chip) -> tuple[int, ...]:
    return (1,) * (chip.torus.dims if chip.torus else 1)


def _example(chip: Chip) -> str:
    if chip.torus:
        return "x".join(map(str, chip.torus.pod_shape))
    return f"{chip.switched.domain_chips}x4" if chip.switched else "1"


def _check_shape(chip: Chip, shape: tuple[int, ...]) -> None:
    text = "x".join(map(str, shape))
    torus, switched = chip.torus, chip.switched
    if torus:
        _check_torus(chip, torus, shape)
    elif switched:
        gpus = shape[0]
        if len(shape) > 2 or gpus > switched.domain_chips:
            raise PlacementError(
                f"{chip.title} shapes are GPUS_PER_NODE x NODES with at most"
                f" {switched.domain_chips} GPUs a node; got {text}",
                hint=f"write {chip.name}:{_example(chip)}",
            )
    elif math.prod(shape) != 1:
        hint = f"write {chip.name}"
        if chip.kind == "cpu":  # nobody measured how its devices are joined
            hint = (
                f"`rooflight measure --devices {math.prod(shape)} --write {chip.name}.toml`, then"
                f" ROOFLIGHT_CHIPS={chip.name}.toml; or write {chip.name}"
            )
        raise PlacementError(f"{chip.title} is a single device; got {text}", hint=hint)


def _check_torus(chip: Chip, torus: TorusSpec, shape: tuple[int, ...]) -> None:
    text = "x".join(map(str, shape))
    if len(shape) != torus.dims:
        raise PlacementError(
            f"{chip.title} slices have {torus.dims} axes; {text} has {len(shape)}",
            hint=f"write {chip.name}:{_example(chip)}",
        )
    pod = math.prod(torus.pod_shape)
    if math.prod(shape) > pod:
        raise PlacementError(
            f"{text} is {math.prod(shape)} chips; the largest {chip.title} slice has {pod}",
            hint=f"use several slices over DCN, such as 2*{chip.name}:{_example(chip)}",
        )
    longest = torus.max_axis or max(torus.pod_shape)
    if max(shape) > longest:
        raise PlacementError(
            f"{text} has an axis of {max(shape)}; the longest {chip.title} axis is {longest}",
            hint=f"write {chip.name}:{_example(chip)}",
        )

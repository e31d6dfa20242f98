"""`Slice`: how many chips, wired how. Parses `v5p:16x20x28`, `2*v5e:16x16`, `h100:8x128`.

A slice is a stack of physical dims, outermost first. On a TPU these are `dcn` (slices over the
data-centre network) and the torus axes `x`, `y`, `z`; on a GPU `spine`, `leaf` and `node`. Where
only a number of chips is given, `slice_shape` finds their shape.
"""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

from rooflight.errors import ParseError, PlacementError
from rooflight.hardware.catalog import find_chip, load_chip
from rooflight.hardware.chip import Chip, SwitchedSpec, TorusSpec

_SLICE = re.compile(
    r"\s*(?:(\d{1,6})\s*([*x])\s*)?([A-Za-z][\w-]*)"
    r"(?:\s*:\s*(\d{1,6}(?:x\d{1,6}){0,3})|\s*\*\s*(\d{1,6}))?\s*(?:/\s*(\d+(?:\.\d+)?)\s*)?"
)
_NAMED_COUNT = re.compile(r"(\w[\w-]*?)([x-])(\d{1,6})")  # h100x64, v5p-1024
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
    nic_bytes_per_s: float | None = None  # of a chip, shared by all tiers that have one
    chain: int = 1  # chips that a collective visits one by one; beyond them it forms a tree
    launch_s: float = 0.0


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
        return f"{count}{self.chip.name}:{shape}{self._uplinks}"

    @property
    def _uplinks(self) -> str:
        """`/7` where uplinks are thinner than the catalog has them."""
        mine, own = self.chip.switched, find_chip(self.chip.name)
        if not mine or not own or not own.switched:
            return ""
        factor = mine.leaf_oversubscription
        return "" if factor == own.switched.leaf_oversubscription else f"/{factor:g}"

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
            return (*self._dcn_dims(), *_switch_dims(switched, self.shape, self.chip.host_chips))
        return (SwitchDim("host", 1, 1, 0.0, 0.0, reduces=False),)

    def oversubscribed(self, factor: float) -> "Slice":
        """The same chips behind leaves whose uplinks carry 1 / factor of what their NICs do."""
        switched = self.chip.switched
        if switched is None or factor < 1:
            raise PlacementError(
                f"{self} cannot be oversubscribed {factor:g} times",
                hint="name a slice behind switches, such as h100:8x64, and a factor of 1 or more",
            )
        switched = replace(switched, leaf_oversubscription=factor)
        return replace(self, chip=replace(self.chip, switched=switched))

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


def _switch_dims(
    fabric: SwitchedSpec, shape: tuple[int, ...], host_chips: int
) -> tuple[SwitchDim, ...]:
    gpus, nodes = shape[0], math.prod(shape[1:])
    nics = fabric.nic_bytes_per_s * gpus
    leaf = max(d for d in range(1, min(nodes, fabric.nodes_per_leaf) + 1) if nodes % d == 0)
    node = SwitchDim(
        "node",
        gpus,
        1,
        fabric.chip_egress_bytes_per_s,
        fabric.hop_s,
        fabric.reduces_in_domain,
        chain=host_chips,
        launch_s=fabric.launch_s,
    )
    dims = [node]
    if nodes > 1:
        dims.insert(0, _fabric_dim(fabric, "leaf", leaf, gpus, nics))
        if nodes > leaf:
            uplinks = nics * leaf / fabric.leaf_oversubscription
            dims.insert(0, _fabric_dim(fabric, "spine", nodes // leaf, gpus * leaf, uplinks))
    return tuple(dims)


def _fabric_dim(
    fabric: SwitchedSpec, name: str, size: int, unit_chips: int, egress: float
) -> SwitchDim:
    return SwitchDim(
        name,
        size,
        unit_chips,
        egress,
        fabric.fabric_hop_s,
        fabric.reduces_in_fabric,
        nic_bytes_per_s=fabric.nic_bytes_per_s,
        launch_s=fabric.launch_s,
    )


def parse_slice(text: str) -> Slice:
    """Reads `[COUNT*]CHIP[:AxBxC]`; a bare chip name is one chip, a single number so many chips.

    GPUs may end in the oversubscription of their leaves: the uplinks of `h100:8x256/7` carry a
    seventh of what the NICs below them do.

    >>> parse_slice("2*v5e:16x16").num_chips, parse_slice("h100:8x128").num_chips
    (512, 1024)
    >>> [str(parse_slice(s)) for s in ("h100:2048", "h100x64", "64xh100", "v5p:512", "v5p-1024")]
    ['h100:8x256', 'h100:8x8', 'h100:8x8', 'v5p:8x8x8', 'v5p:8x8x8']
    """
    match = _SLICE.fullmatch(text)
    if match is None:
        raise _no_slice(text)
    before, times, name, sizes, after, uplinks = match.groups()
    chip, stated = _named(name)
    given = [tuple(int(n) for n in text.split("x")) for text in (stated, sizes, after) if text]
    num_slices = 1
    if before and (times == "x" or (chip.switched and not given)):
        given.append((int(before),))  # 64xh100; and 64*h100, as no DCN joins GPUs
    elif before:
        num_slices = int(before)
    if len(given) > 1:
        raise _no_slice(text)
    shape = given[0] if given else (1,) * (chip.torus.dims if chip.torus else 1)
    if min(num_slices, *shape) < 1:
        raise ParseError(f"{text!r} has a size of zero", hint=f"write {chip.name}:{_example(chip)}")
    if given and len(shape) == 1:
        shape = shape_of_chips(chip, shape[0])
    _check_shape(chip, shape)
    found = Slice(chip, shape, num_slices)
    return found.oversubscribed(float(uplinks)) if uplinks else found


def _no_slice(text: str) -> ParseError:
    return ParseError(
        f"{text!r} does not name a slice",
        hint="write CHIP:AxB, such as v5p:4x4x4 or h100:8x16, or a number of chips: h100:128",
    )


def _named(name: str) -> tuple[Chip, str]:
    """The chip of a name, and how many where the name says so: `h100x64`, Google's `v5p-1024`."""
    chip, match = find_chip(name), _NAMED_COUNT.fullmatch(name)
    if chip or match is None:
        return chip or load_chip(name), ""  # which says what is wrong
    stem, mark, digits = match.groups()
    if mark == "x":
        return find_chip(f"{stem}x") or load_chip(stem), digits  # mi300x8 is eight MI300X
    chip, number = load_chip(stem), int(digits)
    if chip.torus is None:
        raise ParseError(f"{name!r} does not name a slice", hint=f"write {chip.name}:{number}")
    if number % chip.cores:
        raise ParseError(
            f"{name!r} counts TensorCores, of which a {chip.title} has {chip.cores}",
            hint=f"count chips, such as {chip.name}:{_example(chip)}",
        )
    return chip, str(number // chip.cores)


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
                f" {switched.domain_chips} GPUs per node; got {text}",
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


# The shape of a slice of which only the number of chips is known.

_FEWEST = 4  # chips of a slice that is larger than one


def shape_of_chips(chip: Chip, chips: int) -> tuple[int, ...]:
    """The shape that so many chips usually have.

    >>> from rooflight.hardware.catalog import load_chip
    >>> shape_of_chips(load_chip("h100"), 2048), shape_of_chips(load_chip("v5p"), 384)
    ((8, 256), (4, 8, 12))
    """
    if chip.torus and chip.torus.dims > 1:
        return standard_shape(chip.torus, chips) or _refuse(chip, chip.torus, chips)
    domain = chip.switched.domain_chips if chip.switched else chips
    if chips <= domain:
        return (chips,)
    if chips % domain:
        below = chips // domain
        near = " or ".join(f"{chip.name}:{_text(_domains(domain, n))}" for n in (below, below + 1))
        raise PlacementError(
            f"{chips} {chip.title} are not whole nodes of {domain}", hint=f"write {near}"
        )
    return _domains(domain, chips // domain)


def _domains(domain: int, count: int) -> tuple[int, ...]:
    return (domain, count) if count > 1 else (domain,)


def standard_shape(torus: TorusSpec, chips: int) -> tuple[int, ...] | None:
    """The torus of so many chips; None where no slice has just as many.

    Whole cubes lie together as nearly as a cube as they can. Fewer chips, and all on a flat torus,
    are a power of two whose axes are as equal as they can be, longer ones last.
    """
    cube = torus.wrap_cube
    if cube and chips % cube**torus.dims == 0:
        boxes = _boxes(chips // cube**torus.dims, torus.dims)
        shape = tuple(cube * n for n in min(boxes, key=lambda box: (sum(box), max(box))))
    elif chips & (chips - 1) or 1 < chips < _FEWEST:
        return None
    else:
        shape = _doubled(torus.dims, chips)
    longest = torus.max_axis or max(torus.pod_shape)
    fits = chips <= math.prod(torus.pod_shape) and max(shape) <= longest
    return shape if fits else None


def _boxes(number: int, count: int, least: int = 1) -> Iterable[tuple[int, ...]]:
    """Every rising way to write a number as a product of `count` factors."""
    if count == 1:
        yield (number,)
        return
    for first in range(least, math.floor(number ** (1 / count) + 1e-9) + 1):
        if number % first == 0:
            yield from ((first, *rest) for rest in _boxes(number // first, count - 1, first))


def _doubled(dims: int, chips: int) -> tuple[int, ...]:
    """One host of a three-dimensional torus lies flat: 2x2x1; all others have the longest last."""
    shape = [1] * dims
    while math.prod(shape) < chips:
        shape[shape.index(min(shape))] *= 2
    return tuple(shape) if chips == _FEWEST else tuple(sorted(shape))


def _refuse(chip: Chip, torus: TorusSpec, chips: int) -> tuple[int, ...]:
    pod = math.prod(torus.pod_shape)
    if chips > pod:
        raise PlacementError(
            f"the largest {chip.title} slice has {pod} chips, not {chips}",
            hint="use several slices over DCN, such as"
            f" {math.ceil(chips / pod)}*{chip.name}:{_text(torus.pod_shape)}",
        )
    below = next(s for n in range(chips, 0, -1) if (s := standard_shape(torus, n)))
    above = next((s for n in range(chips, pod + 1) if (s := standard_shape(torus, n))), None)
    near = " or ".join(f"{chip.name}:{_text(shape)}" for shape in (below, above) if shape)
    raise PlacementError(f"no {chip.title} slice has just {chips} chips", hint=f"write {near}")


def _text(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))

"""`Derivation`: an answer with the lines that lead to it, and hardware with the book's inputs.

A recipe turns an `Entry` into a `Derivation` by calling the library; each line names what was
asked of it. The inputs of an entry that are named like a field of a chip, its torus or its fabric
replace the catalog's value, so a problem is solved with the numbers the book plugs in.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace

from rooflight.algebra.notation import Tensor, parse_tensor
from rooflight.algebra.reshard import reshard
from rooflight.book.entry import Entry, Value
from rooflight.costs.choose import StepPrice, price_step
from rooflight.costs.network import CollectiveKind, NetworkTime, collective_time
from rooflight.costs.roofline import OpTime
from rooflight.dtypes import DTYPES
from rooflight.hardware.catalog import load_chip
from rooflight.hardware.chip import Chip, SwitchedSpec, TorusSpec
from rooflight.hardware.mesh import Mesh, parse_mesh
from rooflight.hardware.slice import Slice, parse_slice
from rooflight.units import format_si


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a derivation."""

    text: str
    value: Value
    unit: str


@dataclass(frozen=True, slots=True)
class Derivation:
    """Named values and how they came about."""

    values: Mapping[str, Value]
    lines: tuple[Line, ...] = ()


Recipe = Callable[[Entry], Derivation]


def asked(entry: Entry, found: Mapping[str, Value], lines: tuple[Line, ...]) -> Derivation:
    """The values an entry asks for, of all that a recipe found."""
    return Derivation({name: found[name] for name in entry.expected}, lines)


def chip_of(entry: Entry, name: str = "chip") -> Chip:
    """The chip an input names, with the book's inputs in place of the catalog's."""
    return _with_inputs(load_chip(entry.text(name)), entry)


def slice_of(entry: Entry, name: str = "on") -> Slice:
    """The slice an input names, its chip with the book's inputs."""
    found = parse_slice(entry.text(name))
    return replace(found, chip=_with_inputs(found.chip, entry))


def mesh_of(entry: Entry, name: str = "mesh") -> Mesh:
    return parse_mesh(entry.text(name), on=slice_of(entry))


def _with_inputs(chip: Chip, entry: Entry) -> Chip:
    rates = dict(chip.flops)
    for name in entry.inputs:
        dtype = name.removesuffix("_flops")
        if dtype != name and dtype in DTYPES:
            rates[dtype] = entry.number(name)
    torus, switched = chip.torus, chip.switched
    return replace(
        chip,
        flops=rates,
        torus=torus and replace(torus, **_named_like(TorusSpec, entry)),
        switched=switched and replace(switched, **_named_like(SwitchedSpec, entry)),
        **_named_like(Chip, entry),
    )


def _named_like(record: type[Chip | TorusSpec | SwitchedSpec], entry: Entry) -> dict[str, float]:
    """The numbers among the inputs that have the name of a field of a record."""
    names = {f.name for f in fields(record)} - {"flops"}
    return {n: entry.number(n) for n, i in entry.inputs.items() if n in names and _is_rate(i.unit)}


def _is_rate(unit: str) -> bool:
    """Whether an input is a number; texts have the kind of thing they name for a unit."""
    return unit in ("B", "B/s", "FLOP/s", "s", "chips")


def dims_of(entry: Entry, *tensors: Tensor) -> dict[str, int]:
    """The sizes of the dims of some tensors, by name."""
    return {dim: entry.whole(dim) for tensor in tensors for dim in tensor.dims}


def one_step(entry: Entry, mesh: Mesh) -> tuple[StepPrice, NetworkTime]:
    """The only step of a reshard, with its time on the network."""
    source, target = parse_tensor(entry.text("tensor")), parse_tensor(entry.text("to"))
    dims = dims_of(entry, source)
    steps = reshard(source, target, mesh.axes)
    (step,) = [price_step(s, dims, mesh, entry.dtype()) for s in steps]
    assert step.network is not None, f"{entry.id}: {step.step} does not use the network"
    return step, step.network


def on_axes(
    entry: Entry, kind: CollectiveKind, *, in_network_reduction: bool = False
) -> NetworkTime:
    """A collective of input `nbytes` over the mesh axes that input `axes` names."""
    group = mesh_of(entry).group(entry.text("axes"))
    nbytes = entry.number("nbytes")
    return collective_time(kind, nbytes, group, in_network_reduction=in_network_reduction)


def rule_seconds(kind: CollectiveKind, nbytes: float, on: Slice, axes: str) -> float:
    """A collective by the rule for large groups, the axes of a slice being X, Y, Z in order."""
    sizes = ",".join(f"{axis}={n}" for axis, n in zip("XYZ", on.shape, strict=False))
    return collective_time(kind, nbytes, parse_mesh(sizes, on=on).group(axes)).rule_s


def step_line(price: StepPrice) -> Line:
    """A derived step in the notation, with the bytes V of its collective."""
    return Line(str(price.step), price.nbytes, "B")


def roof_lines(op: OpTime) -> tuple[Line, ...]:
    """What each roof of an op allows."""
    return tuple(Line(f"time under the {r.name} roof", r.seconds, "s") for r in op.roofs)


def ring_lines(mesh: Mesh, axes: str) -> tuple[Line, ...]:
    """What the torus axes of a group are and what a chip can send along each."""
    return tuple(
        Line(f"{r.dim} is a {'ring' if r.wraps else 'line'} of {r.size}", r.bytes_per_s, "B/s")
        for r in mesh.group(axes).rings
    )


def fan_lines(mesh: Mesh, axes: str) -> tuple[Line, ...]:
    """What the switched tiers of a group are and what a unit can send across each."""
    return tuple(
        Line(f"{f.dim}: {f.size} units, the group's share of each", f.bytes_per_s, "B/s")
        for f in mesh.group(axes).fans
    )


def time_lines(time: NetworkTime) -> tuple[Line, ...]:
    """The parts of a network time."""
    what = f"{time.kind.replace('_', '-')} of {format_si(time.nbytes, 'B')}"
    return (
        Line(f"{what}, bandwidth", time.bandwidth_s, "s"),
        Line(f"{what}, rule for large groups", time.rule_s, "s"),
        Line(f"{what}, latency", time.latency_s, "s"),
    )

"""The arguments of a program: whole and on one device, and the mesh axes that split them.

In: the module the compiler was given, which has whole shapes and the specs as the user wrote
them, and the partitioned one. Out: an `Argument` each.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rooflight.compile.expected.flow import Flow
from rooflight.compile.hlo.collectives import only_calls, sliced_axes
from rooflight.compile.hlo.instruction import Instruction, Shape
from rooflight.compile.hlo.step import CompiledStep

_SPEC = re.compile(r"(?:#sdy\.sharding|\[)<@\w+, \[(.*?)\](?:,|>)")
_DIM = re.compile(r"\{([^{}]*)\}")
_AXIS = re.compile(r'"(\w+)')
_MATMULS = ("dot", "convolution", "all-gather", "gather")
_CONSTRAINTS = ("sharding_constraint", "reshard")
Spec = tuple[tuple[str, ...], ...]  # the axes of each dim


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument; `spec` has the axes of each dim, None if the program does not say."""

    name: str
    dtype: str
    dims: tuple[int, ...]
    nbytes: int
    device_bytes: int
    spec: Spec | None
    where: str  # the line that uses it first
    cut: Mapping[str, int | None]  # axes along which a device uses a part of it, and of which dim

    @property
    def axes(self) -> frozenset[str]:
        """The mesh axes that split it."""
        return frozenset(axis for dim in self.spec or () for axis in dim)

    @property
    def root(self) -> str:
        """The parameter of the function that it is a leaf of."""
        return re.split(r"[\[.]", self.name)[0]

    @property
    def is_integer(self) -> bool:
        """Tokens, positions, lengths: data, and no weight."""
        return self.dtype.startswith(("s", "u", "pred"))

    def local_dims(self, sizes: Mapping[str, int], whole: Sequence[str] = ()) -> tuple[int, ...]:
        """Of a device, as if some axes did not split it."""
        spec = [
            [axis for axis in dim if axis not in whole]
            for dim in self.spec or ((),) * len(self.dims)
        ]
        degrees = [math.prod(sizes[axis] for axis in dim) for dim in spec]
        return tuple(-(-n // degree) for n, degree in zip(self.dims, degrees, strict=True))

    def split_further(self, axis: str, sizes: Mapping[str, int]) -> Spec | None:
        """A spec that also splits it over an axis, and all that devices cut; None if none divides.

        Where devices cut a dim it is that one, else the largest.

        >>> w = Argument("w", "bf16", (4, 64, 96), 0, 0, ((), ("Y",), ()), "", {"Z": 0})
        >>> w.split_further("X", {"X": 8, "Y": 2, "Z": 2}), w.split_further("X", {"X": 5, "Y": 2})
        ((('Z',), ('Y',), ('X',)), None)
        """
        spec = [list(dim) for dim in self.spec or ((),) * len(self.dims)]
        known = {name: at for name, at in self.cut.items() if at is not None}
        for name in (n for n in sizes if n not in self.axes and (n == axis or n in known)):
            left = [
                n // math.prod(map(sizes.__getitem__, a))
                for n, a in zip(self.dims, spec, strict=True)
            ]
            open_to = [known[name]] if name in known else [at for at, a in enumerate(spec) if not a]
            free = [at for at in open_to if left[at] % sizes[name] == 0]
            if free:
                spec[max(free, key=left.__getitem__)].append(name)
            elif name == axis:
                return None
        return tuple(map(tuple, spec))


def spec_text(spec: Spec) -> str:
    """A spec as jax code."""
    parts = [repr(dim) if len(dim) > 1 else repr(dim[0]) if dim else "None" for dim in spec]
    return f"P({', '.join(parts)})"


def read_arguments(
    given: CompiledStep, found: CompiledStep, axes: Mapping[str, int]
) -> list[Argument]:
    """Every array argument that the partitioned program still has; `axes` of the jax mesh."""
    whole, calls = _parameters(given), only_calls(found.module)
    entry = found.module.computations[found.module.entry]
    lines = _first_uses(found)
    arguments: list[Argument] = []
    for name, local in _parameters(found).items():
        other = whole.get(name)
        if other is None or not local.shapes:
            continue
        shape = other.shapes[0]
        arguments.append(
            Argument(
                name=name,
                dtype=shape.dtype,
                dims=shape.dims,
                nbytes=shape.nbytes,
                device_bytes=local.nbytes,
                spec=((),) * len(shape.dims)
                if local.nbytes == shape.nbytes
                else _spec(other, shape),
                where=lines.get(local.name, ""),
                cut=sliced_axes((entry, local), axes, calls),
            )
        )
    return arguments


def _first_uses(found: CompiledStep) -> dict[str, str]:
    """The line of the first matmul of every argument; of one without, of anything else."""
    flow = Flow(found.module)
    matmuls: dict[str, str] = {}
    others: dict[str, str] = {}
    for name in found.runs:
        computation = found.module.computations[name]
        for instruction in computation.instructions:
            lines = matmuls if instruction.opcode in _MATMULS else others
            source = found.module.source(instruction)
            for value in computation.inputs(instruction) if source else ():
                if argument := flow.argument_of((computation, value)):
                    lines.setdefault(argument.name, source)
    return others | matmuls


def _parameters(step: CompiledStep) -> Mapping[str, Instruction]:
    entry = step.module.computations[step.module.entry]
    return {i.op_name.replace("\\", ""): i for i in entry.instructions if i.opcode == "parameter"}


def constraint_spec(constraint: Instruction) -> Spec | None:
    """What a sharding constraint of the program asks for; None if it is none, or asks for more."""
    shapes = constraint.shapes
    is_one = constraint.attribute("custom_call_target") == "Sharding" and len(shapes) == 1
    return _spec(constraint, shapes[0]) if is_one else None


def is_constraint(instruction: Instruction) -> bool:
    return instruction.op_name.rpartition("/")[2] in _CONSTRAINTS


def constraint_helpers(step: CompiledStep) -> frozenset[str]:
    """Lines of constraints that have several callers: the callers say more."""
    callers: dict[str, set[str]] = {}
    for name in step.runs:
        for instruction in step.module.computations[name].instructions:
            if is_constraint(instruction):
                line = step.module.source(instruction)
                callers.setdefault(line, set()).add(step.module.caller(instruction))
    return frozenset(line for line, outer in callers.items() if len(outer - {""}) > 1)


def _spec(parameter: Instruction, shape: Shape) -> Spec | None:
    """The axes of every dim as the program says them; a part of an axis counts as the axis."""
    match = _SPEC.search(parameter.attributes.replace("\\", ""))
    if match is None:
        return None
    dims = tuple(tuple(_AXIS.findall(text)) for text in _DIM.findall(match[1]))
    return dims if len(dims) == len(shape.dims) else None

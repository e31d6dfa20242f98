"""Which part of an all-reduce a device keeps: the mesh axes that decide it.

Right after partitioning a reduce-scatter is an all-reduce and a slice whose start is looked up in
a table by the device's id, perhaps where the computation of the all-reduce is called from. The
start is worked out for every device; the axes along which it changes are those over which the
result is scattered.
"""

import math
import re
from collections.abc import Mapping

from rooflight.compile.hlo.instruction import Computation, Instruction, Module

_SAME_ELEMENTS = ("reshape", "transpose", "bitcast", "copy")
_SAME_VALUE = ("reshape", "bitcast", "copy", "convert")
_NUMBER = re.compile(r"-?\d{1,18}")
_FARTHEST = 32


Place = tuple[Computation, Instruction]


def only_calls(module: Module) -> dict[str, Place]:
    """The computations that one `call` of the module asks for, and that call.

    jax takes a pending sum in a computation of its own; its caller cuts the result.
    """
    found: dict[str, list[Place]] = {}
    for computation in module.computations.values():
        for instruction in computation.instructions:
            if instruction.opcode == "call":
                for name in instruction.called:
                    found.setdefault(name, []).append((computation, instruction))
    return {name: places[0] for name, places in found.items() if len(places) == 1}


def sliced_axes(
    place: Place, axes: Mapping[str, int], calls: Mapping[str, Place]
) -> tuple[str, ...]:
    """The mesh axes that decide which part of a value a device keeps; none if it keeps it all."""
    found_cut = _only_slice(place, calls)
    if found_cut is None:
        return ()
    computation, cut = found_cut
    starts = [_values(computation, i, axes, _FARTHEST) for i in computation.inputs(cut)[1:]]
    found: list[str] = []
    for name, (stride, size) in _strides(axes).items():
        if any(values and _changes(values, stride, size) for values in starts):
            found.append(name)
    return tuple(found)


def _only_slice(place: Place, calls: Mapping[str, Place]) -> Place | None:
    """The slice that is the only use of a value, through reshapes and out of calls."""
    computation, value = place
    for _ in range(_FARTHEST):
        if value is computation.root and computation.name in calls:
            computation, value = calls[computation.name]
        start = computation.position[value.name]
        users = [i for i in computation.instructions[start:] if value.name in i.operands]
        if len(users) != 1:
            return None
        if users[0].opcode == "dynamic-slice":
            return computation, users[0]
        if users[0].opcode not in _SAME_ELEMENTS:
            return None
        value = users[0]
    return None


def _strides(axes: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """Places between neighbours along an axis, and its size; row-major."""
    found: dict[str, tuple[int, int]] = {}
    stride = 1
    for name, size in reversed(list(axes.items())):
        found[name] = (stride, size)
        stride *= size
    return found


def _changes(values: list[int], stride: int, size: int) -> bool:
    """Whether moving along an axis ever changes the value."""
    return any(
        value != values[place - place // stride % size * stride]
        for place, value in enumerate(values)
    )


def _values(
    computation: Computation, value: Instruction, axes: Mapping[str, int], depth: int
) -> list[int] | None:
    """The value of a scalar index on every device; None if it does not follow from the id."""
    places = math.prod(axes.values())
    inputs = computation.inputs(value)
    if value.opcode == "partition-id":
        return list(range(places))
    if value.integer is not None:
        return [value.integer] * places
    if depth == 0 or not inputs:
        return None
    if value.opcode in _SAME_VALUE:
        return _values(computation, inputs[0], axes, depth - 1)
    if value.opcode == "dynamic-slice" and inputs[0].opcode == "constant" and len(inputs) == 2:
        return _looked_up(inputs[0], _values(computation, inputs[1], axes, depth - 1))
    if value.opcode in ("add", "subtract", "multiply") and len(inputs) == 2:
        left, right = (_values(computation, i, axes, depth // 2) for i in inputs)
        return _combined(value.opcode, left, right)
    return None


def _looked_up(table: Instruction, places: list[int] | None) -> list[int] | None:
    """Entries of a constant table; a dump may leave a large one out."""
    entries = [int(n) for n in _NUMBER.findall(table.body)]
    if places is None or not entries or not all(0 <= at < len(entries) for at in places):
        return None
    return [entries[at] for at in places]


def _combined(opcode: str, left: list[int] | None, right: list[int] | None) -> list[int] | None:
    if left is None or right is None:
        return None
    pairs = zip(left, right, strict=True)
    if opcode == "multiply":
        return [a * b for a, b in pairs]
    sign = 1 if opcode == "add" else -1
    return [a + sign * b for a, b in pairs]

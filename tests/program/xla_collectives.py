"""The collectives of a partitioned program, each with the case it belongs to.

In: the text XLA dumps right after partitioning, and the mesh. Out: a `Counter` of `Collective`s
for each case, in the words of the algebra: an all-reduce of which every device keeps only its own
part is a reduce-scatter.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

Groups = list[list[int]]

_LINE = re.compile(r"\s+(?:ROOT )?%([\w.-]+) = (\w+)\[([\d,]*)\]\S* ([\w-]+)\((.*?)\)(.*)")
_IOTA = r"\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?"
_MESH = r"mesh\[(.*?)\](?:, device_ids=\(\[([\d,]+)\](?:T\(([\d,]+)\))?\))? \{(.*?)\}"
_DTYPE_BYTES = {"bf16": 2, "f32": 4}
_SAME_ELEMENTS = ("reshape", "transpose", "bitcast", "copy")


@dataclass(frozen=True, slots=True, order=True)
class Collective:
    """One collective as both sides count it: kind, mesh axes, and the bytes V of `costs.network`."""

    kind: str
    axes: tuple[str, ...]
    nbytes: int

    def __str__(self) -> str:
        return f"{self.kind} over {''.join(self.axes)} of {self.nbytes / 2**20:g} MiB"


@dataclass(frozen=True, slots=True)
class Instruction:
    """One line of HLO."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    op: str
    body: str
    attributes: str

    @property
    def operands(self) -> list[str]:
        return re.findall(r"%([\w.-]+)", self.body)

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * _DTYPE_BYTES[self.dtype]


Program = dict[str, Instruction]


def collectives(text: str, axes: Mapping[str, int]) -> list[Counter[Collective]]:
    """What every case communicates, in the order of the cases."""
    program = {i.name: i for i in _instructions(text)}
    count = max(int(i.body) for i in program.values() if i.op == "parameter") // 2 + 1
    found: list[Counter[Collective]] = [Counter() for _ in range(count)]
    for instruction in program.values():
        for collective in _read(instruction, program, axes):
            found[_case(instruction, program)][collective] += 1
    return found


def _instructions(text: str) -> Iterator[Instruction]:
    """The lines of the entry computation; the others are the sums of the reductions."""
    for line in text.partition("\nENTRY ")[2].splitlines()[1:]:
        match = _LINE.match(line)
        if match:
            name, dtype, shape, op, body, attributes = match.groups()
            yield Instruction(name, dtype, _numbers(shape), op, body, attributes)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"\d+", text))


def _case(instruction: Instruction, program: Program) -> int:
    """Every case has two parameters of its own; follow the data up to one of them."""
    while instruction.op != "parameter":
        instruction = program[instruction.operands[0]]
    return int(instruction.body) // 2


def _read(
    instruction: Instruction, program: Program, axes: Mapping[str, int]
) -> Iterator[Collective]:
    local = instruction.nbytes if instruction.dtype in _DTYPE_BYTES else 0
    match instruction.op:
        case "all-gather":
            yield Collective("all_gather", _axes(_groups(instruction), axes), local)
        case "all-reduce":
            yield from _reduction(instruction, program, axes)
        case "all-to-all":
            groups = _groups(instruction)
            yield Collective("all_to_all", _axes(groups, axes), local * len(groups[0]))
        case "collective-permute":
            yield Collective("permute", _axes(_groups(instruction), axes), local)
        case "parameter" | "constant" | "dot" | "partition-id" | "dynamic-slice" | "tuple":
            return
        case "reshape" | "transpose" | "add" | "subtract" | "bitcast" | "copy":
            return
        case other:
            raise AssertionError(f"do not know whether {other} communicates")


def _reduction(
    instruction: Instruction, program: Program, axes: Mapping[str, int]
) -> Iterator[Collective]:
    """An all-reduce is a reduce-scatter over those of its axes over which it is then sliced."""
    summed = _axes(_groups(instruction), axes)
    kept = _sliced_over(instruction, program, axes)
    scattered = tuple(a for a in summed if a in kept)
    rest = tuple(a for a in summed if a not in kept)
    if scattered:
        yield Collective("reduce_scatter", scattered, instruction.nbytes)
    if rest:
        parts = math.prod(axes[a] for a in scattered)
        yield Collective("all_reduce", rest, instruction.nbytes // parts)


def _sliced_over(
    instruction: Instruction, program: Program, axes: Mapping[str, int]
) -> tuple[str, ...]:
    """The mesh axes that decide which part of a value a device keeps; none if it keeps it all."""
    users = [i for i in program.values() if instruction.name in i.operands]
    if len(users) != 1:
        return ()
    if users[0].op in _SAME_ELEMENTS:
        return _sliced_over(users[0], program, axes)
    if users[0].op != "dynamic-slice":
        return ()
    offsets = [_value(program[o], program, axes) for o in users[0].operands[1:]]
    grid = np.array(offsets).reshape(-1, *axes.values())
    return tuple(
        name for at, name in enumerate(axes, start=1) if (grid != grid.take([0], axis=at)).any()
    )


def _value(instruction: Instruction, program: Program, axes: Mapping[str, int]) -> list[int]:
    """The value of a scalar index on every device: which part to take is looked up in tables."""
    devices = math.prod(axes.values())
    inputs = [program[o] for o in instruction.operands]
    match instruction.op:
        case "partition-id":
            return list(range(devices))
        case "constant":
            return [int(instruction.body)] * devices
        case "reshape":
            return _value(inputs[0], program, axes)
        case "dynamic-slice":
            table = _numbers(inputs[0].body)
            return [table[at] for at in _value(inputs[1], program, axes)]
        case "subtract" | "add":
            sign = 1 if instruction.op == "add" else -1
            left, right = (_value(i, program, axes) for i in inputs)
            return [a + sign * b for a, b in zip(left, right, strict=True)]
        case other:
            raise AssertionError(f"do not know how to evaluate {other}")


def _groups(instruction: Instruction) -> Groups:
    """Who communicates with whom, in the three ways XLA writes it, or as pairs."""
    text = instruction.attributes
    if match := re.search("replica_groups=" + _IOTA, text):
        return _reordered(match[2], match[3]).reshape(_numbers(match[1])).tolist()
    if match := re.search("replica_groups=" + _MESH, text):
        return _mesh_groups(*match.groups())
    match = re.search(r"(?:replica_groups|source_target_pairs)=\{(\{.*?\})\}", text)
    assert match, f"{instruction.name} has no groups"
    return [list(_numbers(group)) for group in match[1].split("},{")]


def _reordered(shape: str, order: str | None) -> "np.ndarray[tuple[int, ...], np.dtype[np.int_]]":
    devices = np.arange(math.prod(_numbers(shape))).reshape(_numbers(shape))
    return devices.transpose(_numbers(order)) if order else devices


def _mesh_groups(mesh: str, shape: str | None, order: str | None, chosen: str) -> Groups:
    """`mesh['a'=4,'b'=4], device_ids=([4,4]T(1,0)) {'b'}`: the devices that differ in b alone."""
    sizes = {name: int(size) for name, size in re.findall(r"'(\w+)'=(\d+)", mesh)}
    assert ":" not in chosen, f"part of an axis: {chosen}"
    inner = [list(sizes).index(name) for name in re.findall(r"'(\w+)'", chosen)]
    outer = [at for at in range(len(sizes)) if at not in inner]
    whole = ",".join(map(str, sizes.values()))
    devices = _reordered(shape or whole, order).reshape(tuple(sizes.values()))
    group = math.prod(devices.shape[at] for at in inner)
    return devices.transpose(outer + inner).reshape(-1, group).tolist()


def _axes(groups: Groups, axes: Mapping[str, int]) -> tuple[str, ...]:
    """The mesh axes along which members of a group differ: devices count row-major over the mesh."""
    sizes = tuple(axes.values())
    places = [np.array(np.unravel_index(group, sizes)) for group in groups]
    differs = np.any([(p != p[:, :1]).any(axis=1) for p in places], axis=0)
    return tuple(name for name, moved in zip(axes, differs, strict=True) if moved)

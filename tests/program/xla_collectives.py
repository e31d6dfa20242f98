"""The collectives of a partitioned program, each with the case it belongs to.

In: the text XLA dumps right after partitioning, and the mesh. Out: a `Counter` of `Collective`s
for each case, in the words of the algebra: an all-reduce of which every device keeps only its own
part is a reduce-scatter.
"""

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

Axes = tuple[str, ...]
Groups = list[list[int]]

_LINE = re.compile(r"\s+(?:ROOT )?%([\w.-]+) = (\w+)\[([\d,]*)\]\S* ([\w-]+)\((.*?)\)(.*)")
_IOTA = r"\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?"
_MESH = r"mesh\[(.*?)\](?:, device_ids=\(\[([\d,]+)\](?:T\(([\d,]+)\))?\))? \{(.*?)\}"
_DTYPE_BYTES = {"bf16": 2, "f32": 4}
_SAME_ELEMENTS = ("reshape", "transpose", "bitcast", "copy")
_SILENT = (
    *_SAME_ELEMENTS,
    *("parameter", "constant", "dot", "partition-id", "dynamic-slice", "add", "subtract"),
)


@dataclass(frozen=True, slots=True, order=True)
class Collective:
    """One collective as both sides count it: kind, mesh axes, the bytes V of `costs.network`."""

    kind: str
    axes: Axes
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


@dataclass(frozen=True, slots=True)
class Program:
    """The entry computation and the mesh it runs on."""

    instructions: Mapping[str, Instruction]
    users: Mapping[str, list[Instruction]]
    axes: Mapping[str, int]

    @property
    def devices(self) -> int:
        return math.prod(self.axes.values())


def collectives(text: str, axes: Mapping[str, int]) -> list[Counter[Collective]]:
    """What every case communicates, in the order of the cases."""
    program = _program(text, axes)
    instructions = program.instructions.values()
    count = max(int(i.body) for i in instructions if i.op == "parameter") // 2 + 1
    found: list[Counter[Collective]] = [Counter() for _ in range(count)]
    for instruction in instructions:
        if instruction.op not in _SILENT:
            found[_case(instruction, program)].update(_read(instruction, program))
    return found


def _program(text: str, axes: Mapping[str, int]) -> Program:
    """Reads the entry computation; the others are the sums of the reductions."""
    instructions: dict[str, Instruction] = {}
    users: dict[str, list[Instruction]] = {}
    for line in text.partition("\nENTRY ")[2].splitlines()[1:]:
        match = _LINE.match(line)
        if match is None:
            assert " tuple(" in line or line in ("", "}"), f"cannot read {line}"
            continue
        name, dtype, shape, op, body, attributes = match.groups()
        instruction = Instruction(name, dtype, _numbers(shape), op, body, attributes)
        instructions[name] = instruction
        for operand in instruction.operands:
            users.setdefault(operand, []).append(instruction)
    return Program(instructions, users, axes)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"\d+", text))


def _case(instruction: Instruction, program: Program) -> int:
    """Every case has two parameters of its own; follow the data up to one of them."""
    while instruction.op != "parameter":
        instruction = program.instructions[instruction.operands[0]]
    return int(instruction.body) // 2


def _read(instruction: Instruction, program: Program) -> list[Collective]:
    groups, local = _groups(instruction), instruction.nbytes
    axes = _axes(groups, program.axes)
    match instruction.op:
        case "all-gather":
            return [Collective("all_gather", axes, local)]
        case "all-reduce":
            return _reduction(axes, local, _sliced_over(instruction, program), program)
        case "all-to-all":
            return [Collective("all_to_all", axes, local * len(groups[0]))]
        case "collective-permute":
            return [Collective("permute", axes, local)]
        case other:
            raise AssertionError(f"do not know whether {other} communicates")


def _reduction(axes: Axes, local: int, kept: Axes, program: Program) -> list[Collective]:
    """An all-reduce is a reduce-scatter over those of its axes over which it is then sliced."""
    scattered = tuple(a for a in axes if a in kept)
    rest = tuple(a for a in axes if a not in kept)
    parts = math.prod(program.axes[a] for a in scattered)
    found = [Collective("reduce_scatter", scattered, local)] if scattered else []
    return [*found, Collective("all_reduce", rest, local // parts)] if rest else found


def _sliced_over(instruction: Instruction, program: Program) -> Axes:
    """The mesh axes that decide which part of a value a device keeps; none if it keeps it all."""
    users = program.users.get(instruction.name, [])
    if len(users) != 1:
        return ()
    if users[0].op in _SAME_ELEMENTS:
        return _sliced_over(users[0], program)
    if users[0].op != "dynamic-slice":
        return ()
    starts = [_value(program.instructions[o], program) for o in users[0].operands[1:]]
    grid = np.array(starts).reshape(-1, *program.axes.values())
    return tuple(
        name
        for at, name in enumerate(program.axes, start=1)
        if (grid != grid.take([0], axis=at)).any()
    )


def _value(instruction: Instruction, program: Program) -> list[int]:
    """The value of a scalar index on every device: which part to take is looked up in tables."""
    inputs = [program.instructions[o] for o in instruction.operands]
    match instruction.op:
        case "partition-id":
            return list(range(program.devices))
        case "constant":
            return [int(instruction.body)] * program.devices
        case "reshape":
            return _value(inputs[0], program)
        case "dynamic-slice":
            table = _numbers(inputs[0].body)
            return [table[at] for at in _value(inputs[1], program)]
        case "subtract" | "add":
            sign = 1 if instruction.op == "add" else -1
            left, right = (_value(i, program) for i in inputs)
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


def _axes(groups: Groups, axes: Mapping[str, int]) -> Axes:
    """The mesh axes along which members of a group differ; devices count row-major."""
    sizes = tuple(axes.values())
    places = [np.array(np.unravel_index(group, sizes)) for group in groups]
    differs = np.any([(p != p[:, :1]).any(axis=1) for p in places], axis=0)
    return tuple(name for name, moved in zip(axes, differs, strict=True) if moved)

"""The compiled programs inside a trace: what each instruction is, where it comes from, its work.

In: an HloProto of the metadata plane. Out: `ProtoInstruction`s by name. Traces of TPUs say all of
this beside their events; traces of CPUs and GPUs say only the name of the instruction.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rooflight.measure.trace.wire import BYTES, VARINT, Data, WireField, fields, numbers, text

# Bits of XLA's PrimitiveType, by its number; others (tuples, tokens) have no bytes of their own.
_KINDS = {
    4: (21, 22, 32),
    8: (1, 2, 6, 19, 20, 23, 24, 25, 28, 29, 33),
    16: (3, 7, 10, 16),
    32: (4, 8, 11),
    64: (5, 9, 12, 15),
    128: (18,),
}
_BITS = {kind: bits for bits, kinds in _KINDS.items() for kind in kinds}
_DEEPEST = 8  # of tuples in tuples
_LARGEST = 2**60  # elements of an array; what says more is not believed
_MATMULS = ("dot", "convolution")
_VIEWS = ("get-tuple-element", "tuple", "bitcast")
_MOST_INPUTS = 64
_MOVES_NOTHING = ("parameter", "constant", "get-tuple-element", "tuple", "bitcast", "iota")


@dataclass(frozen=True, slots=True)
class ProtoInstruction:
    """One instruction of a compiled program."""

    name: str
    opcode: str
    op_name: str  # scopes of the program and the primitive
    source: str  # file:line
    target: str  # of a custom call
    inner: frozenset[str]  # opcodes of what a fusion holds
    inputs: frozenset[str]  # instructions whose results it reads
    flops: float | None  # of one execution; only matmuls are counted
    nbytes: int | None  # operands and result, once each


@dataclass(slots=True)
class _Raw:
    """An instruction as far as its own message says."""

    name: str = ""
    opcode: str = ""
    op_name: str = ""
    source: str = ""
    target: str = ""
    frame: int = 0
    number: int = 0
    shape: "_Shape | None" = None
    contracted: tuple[int, ...] = ()
    operands: list[int] = field(default_factory=list[int])
    called: list[int] = field(default_factory=list[int])


@dataclass(frozen=True, slots=True)
class _Shape:
    dims: tuple[int, ...]
    nbytes: int

    @property
    def size(self) -> int:
        return math.prod(self.dims)


def read_program(data: Data, start: int, stop: int) -> dict[str, ProtoInstruction]:
    """HloProto: module 1. HloModuleProto: computations 3, stack frames 17."""
    modules = _inner(data, start, stop, 1)
    if not modules:
        return {}
    parts = _bytes(data, modules[0])
    bodies = dict(_computation(data, f) for f in parts if f.number == 3)
    frames: dict[int, str] = {}
    for part in parts:
        if part.number == 17:
            frames = _frames(data, part)
    by_id = {one.number: one for body in bodies.values() for one in body}
    work = {number: _work(body, by_id) for number, body in bodies.items()}
    every = [one for body in bodies.values() for one in body]
    return {one.name: _finish(one, by_id, work, frames) for one in every}


@dataclass(frozen=True, slots=True)
class _Work:
    """What a computation holds: its opcodes and the FLOPs of its matmuls, None if unknown."""

    opcodes: frozenset[str]
    flops: float | None


def _work(body: Sequence[_Raw], by_id: Mapping[int, _Raw]) -> _Work:
    counts = [_flops(i, by_id) for i in body if i.opcode in _MATMULS]
    known = [n for n in counts if n is not None]
    flops = math.fsum(known) if len(known) == len(counts) else None
    return _Work(frozenset(i.opcode for i in body), flops)


def _finish(
    one: _Raw, by_id: Mapping[int, _Raw], work: Mapping[int, _Work], frames: Mapping[int, str]
) -> ProtoInstruction:
    """A fusion does what it holds; what a loop or a call holds has events of its own.

    Nobody knows what a custom call does.
    """
    inside = work.get(one.called[0]) if one.opcode == "fusion" and one.called else None
    own = inside or _work([one], by_id)
    return ProtoInstruction(
        name=one.name,
        opcode=one.opcode,
        op_name=one.op_name,
        source=one.source or frames.get(one.frame, ""),
        target=one.target,
        inner=inside.opcodes if inside else frozenset(),
        inputs=_inputs(one, by_id),
        flops=None if one.opcode == "custom-call" else own.flops,
        nbytes=_traffic(one, by_id),
    )


def _inputs(one: _Raw, by_id: Mapping[int, _Raw]) -> frozenset[str]:
    """Where its operands were made, through tuples and views; at most some dozens."""
    found: set[str] = set()
    seen: set[int] = set()
    level = one.operands[:_MOST_INPUTS]
    while level and len(seen) < _MOST_INPUTS:
        seen.update(level)
        made = [by_id[number] for number in level if number in by_id]
        found.update(i.name for i in made if i.opcode not in _VIEWS)
        level = [n for i in made if i.opcode in _VIEWS for n in i.operands if n not in seen]
    return frozenset(found)


def _flops(one: _Raw, by_id: Mapping[int, _Raw]) -> float | None:
    """2 * elements of the result * elements summed for each (book, chapter 4); dots only."""
    lhs = by_id.get(one.operands[0]) if one.operands else None
    if one.opcode != "dot" or one.shape is None or lhs is None or lhs.shape is None:
        return None
    dims = lhs.shape.dims
    if any(d >= len(dims) for d in one.contracted):
        return None
    return 2.0 * one.shape.size * math.prod(dims[d] for d in set(one.contracted))


def _traffic(one: _Raw, by_id: Mapping[int, _Raw]) -> int | None:
    """Operands read and result written, as if all of each: an upper bound where slices are."""
    if one.opcode in _MOVES_NOTHING or one.shape is None:
        return None
    inputs = [by_id[number].shape for number in one.operands if number in by_id]
    return one.shape.nbytes + sum(shape.nbytes for shape in inputs if shape)


def _inner(data: Data, start: int, stop: int, number: int) -> list[WireField]:
    return [f for f in fields(data, start, stop) if f.number == number and f.wire == BYTES]


def _computation(data: Data, found: WireField) -> tuple[int, list[_Raw]]:
    """HloComputationProto: instructions 2, id 5."""
    own = list(fields(data, found.start, found.stop))
    ids = [f.signed for f in own if f.number == 5 and f.wire == VARINT]
    body = [_instruction(data, f) for f in own if f.number == 2 and f.wire == BYTES]
    return (ids[-1] if ids else 0), body


def _instruction(data: Data, found: WireField) -> _Raw:
    """HloInstructionProto: name 1, opcode 2, shape 3, metadata 7, target 28, dot 30, ids 35-38."""
    raw = _Raw()
    for f in fields(data, found.start, found.stop):
        if f.number == 35 and f.wire == VARINT:
            raw.number = f.signed
        elif f.number == 36:
            raw.operands += numbers(data, f)
        elif f.number == 38:
            raw.called += numbers(data, f)
        elif f.wire != BYTES:
            continue
        elif f.number == 1:
            raw.name = text(data, f)
        elif f.number == 2:
            raw.opcode = text(data, f)
        elif f.number == 3:
            raw.shape = _shape(data, f, _DEEPEST)
        elif f.number == 7:
            _metadata(data, f, raw)
        elif f.number == 28:
            raw.target = text(data, f)
        elif f.number == 30:
            raw.contracted = tuple(_repeated(data, f, 1))
    return raw


def _metadata(data: Data, found: WireField, raw: _Raw) -> None:
    """OpMetadata: op_name 2, source_file 3, source_line 4, stack_frame_id 15."""
    words = {f.number: text(data, f) for f in _bytes(data, found) if f.number in (2, 3)}
    counts = {f.number: f.signed for f in fields(data, found.start, found.stop) if f.wire == VARINT}
    raw.op_name = words.get(2, "")
    raw.frame = counts.get(15, 0)
    if words.get(3):
        raw.source = f"{words[3]}:{counts[4]}" if 4 in counts else words[3]


def _bytes(data: Data, found: WireField) -> list[WireField]:
    return [f for f in fields(data, found.start, found.stop) if f.wire == BYTES]


def _repeated(data: Data, found: WireField, number: int) -> list[int]:
    own = [f for f in fields(data, found.start, found.stop) if f.number == number]
    return [value for f in own for value in numbers(data, f)]


def _shape(data: Data, found: WireField, deepest: int) -> _Shape:
    """ShapeProto: element_type 2, dimensions 3, tuple_shapes 4."""
    own = list(fields(data, found.start, found.stop))
    kinds = [f.value for f in own if f.number == 2 and f.wire == VARINT]
    dims = tuple(n for f in own if f.number == 3 for n in numbers(data, f))
    if len(dims) > 64 or math.prod(dims) > _LARGEST:
        return _Shape((), 0)
    nbytes = math.prod(dims) * _BITS.get(kinds[-1] if kinds else 0, 0) // 8
    if deepest:
        parts = [f for f in own if f.number == 4 and f.wire == BYTES]
        nbytes += sum(_shape(data, f, deepest - 1).nbytes for f in parts)
    return _Shape(dims, nbytes)


def _frames(data: Data, found: WireField) -> dict[int, str]:
    """Frame -> file:line. StackFrameIndexProto: files 1, locations 3, frames 4; all from one."""
    own = _bytes(data, found)
    files = [text(data, f) for f in own if f.number == 1]
    places = [_counts(data, f) for f in own if f.number == 3]
    frames = [_counts(data, f).get(1, 0) for f in own if f.number == 4]
    found_lines: dict[int, str] = {}
    for frame, place in enumerate(frames, start=1):
        location = places[place - 1] if 0 < place <= len(places) else {}
        file = location.get(1, 0)
        if 0 < file <= len(files):
            found_lines[frame] = _place(files, file, location.get(3))
    return found_lines


def _place(files: Sequence[str], file: int, line: int | None) -> str:
    return f"{files[file - 1]}:{line}" if line is not None else files[file - 1]


def _counts(data: Data, found: WireField) -> dict[int, int]:
    own = fields(data, found.start, found.stop)
    return {f.number: f.signed for f in own if f.wire == VARINT}
